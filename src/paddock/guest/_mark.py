"""Marks: where a stream begins anew, whatever stood on it before.

A stream to another wall (a socket that a program inherited, a port of a virtual machine) lives longer than those who
speak on it, and each may die in the middle of a frame. Whoever begins anew sends the mark and then HELLO. Who finds the
mark drops all that was open and answers in the same way, unless it waits for the answer to its own.

The guest makes the mark by chance when it starts, and tells it in its HELLO: nothing that a program prints contains it.
"""

from __future__ import annotations

import os

MARK_BYTES = 16


def new_mark() -> bytes:
    return os.urandom(MARK_BYTES)


class MarkFinder:
    """Looks for the mark in what arrives, wherever it was cut."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._tail = b""

    def after(self, data: bytes) -> bytes | None:
        """What follows the last mark; None: there was none."""
        around = self._tail + data[: MARK_BYTES - 1]
        rest: bytes | None = None
        if (at := data.rfind(self._mark)) >= 0:
            rest = data[at + MARK_BYTES :]
        elif (at := around.rfind(self._mark)) >= 0:
            rest = data[at + MARK_BYTES - len(self._tail) :]
        if rest is not None:
            self._tail = rest[1 - MARK_BYTES :]
        elif len(data) >= MARK_BYTES - 1:
            self._tail = data[1 - MARK_BYTES :]
        else:
            self._tail = around[1 - MARK_BYTES :]
        return rest
