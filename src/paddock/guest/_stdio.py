"""What a command has for descriptors 0, 1 and 2: pipes of the host, our own pipes, or a terminal."""

from __future__ import annotations

import os

from ._faults import Fault
from ._frames import STDERR, STDOUT


class Stdio:
    """`child` is what the command gets. `stdin` and `outputs` are for the agent to pump; `terminal` to resize.
    `inner` are the command's ends where we made them: closed once it has started.
    """

    def __init__(self) -> None:
        self.child: tuple[int, int, int] = (-1, -1, -1)
        self.stdin: int | None = None
        self.outputs: list[tuple[int, int]] = []
        self.terminal: int | None = None
        self.inner: list[int] = []

    def started(self) -> None:
        while self.inner:
            os.close(self.inner.pop())

    def abandon(self) -> None:
        self.started()
        for fd in (self.stdin, self.terminal, *(fd for _, fd in self.outputs)):
            if fd is not None:
                os.close(fd)


def given(descriptors: list[int], wants_stdin: bool, null: int) -> Stdio:
    """Ends of the host's pipes: stdin if wanted, stdout, stderr. They stay the connection's to close."""
    if len(descriptors) != 2 + wants_stdin:
        raise Fault("invalid_argument", "the wrong number of descriptors for a command")
    stdio = Stdio()
    out, err = descriptors[-2:]
    stdio.child = (descriptors[0] if wants_stdin else null, out, err)
    return stdio


def piped(wants_stdin: bool, null: int) -> Stdio:
    stdio = Stdio()
    stdin = null
    try:
        if wants_stdin:
            stdin, stdio.stdin = os.pipe2(os.O_CLOEXEC)
            stdio.inner.append(stdin)
        for stream in (STDOUT, STDERR):
            reader, writer = os.pipe2(os.O_CLOEXEC)
            stdio.outputs.append((stream, reader))
            stdio.inner.append(writer)
    except BaseException:
        stdio.abandon()
        raise
    stdio.child = (stdin, stdio.inner[-2], stdio.inner[-1])
    return stdio


def terminal() -> Stdio:
    stdio = Stdio()
    try:
        master, slave = os.openpty()
        stdio.outputs.append((STDOUT, master))
        stdio.inner.append(slave)
        stdio.stdin = os.dup(master)
        stdio.terminal = os.dup(master)
    except BaseException:
        stdio.abandon()
        raise
    stdio.child = (slave, slave, slave)
    return stdio
