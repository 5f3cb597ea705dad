"""What runs a virtual machine, as its course sees it, and the place of its files.

One module for each: `_vmm_<name>.Vmm`. What such a program is like, and by which means it is told, stays in there.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from typing import Protocol

Done = Callable[[str | None], None]
"""`done(None)`: it is so. `done(why)`: it is not, and why, for people to read (`_freeze.NO_ROOM`: the disk is full)."""


class Vmm(Protocol):
    """Made with the pilot, the `Place`, what the course was told (`options`), and whether the machine `boots` or is
    loaded. The course asks for one thing at a time."""

    def start(self, ends: Mapping[str, int]) -> int:
        """The pid of the program, started. `ends` are the machine's ends of the lines. It makes what it needs beside
        view and disk, or sees that what it needs is there: OSError, ValueError."""
        ...

    @property
    def files(self) -> socket.socket:
        """The stream to what carries files in the machine (`_fuse_relay`), from `start` on."""
        ...

    def boot(self, done: Done) -> None: ...

    def load(self, done: Done) -> None:
        """The machine of `state` stands, and can go on."""
        ...

    def save(self, image: int | None, done: Done) -> None:
        """The machine stands. Its devices are in `state.new`, and its memory is in the file `image`, which held that
        with which it was loaded; without, in `ram`, where it booted."""
        ...

    def go_on(self, done: Done) -> None: ...

    def close(self) -> None:
        """The program has ended. Whoever waits for something is told."""
        ...


class Place:
    """Files of the machine, in the sandbox's own tree. `state` and `lines` are there only while nobody runs on them:
    whoever loads them removes them, since memory and disk go on. `ram` lies in a layer below, the image `memory`, which
    others run from too, and is never written; a machine that boots has its own."""

    def __init__(self, directory: str, stamp: str, memory: str) -> None:
        self._directory, self._stamp, self._memory = directory, stamp, memory

    def path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def lines(self) -> tuple[dict[str, str], list[str]]:
        """The marks of the lines of what was saved, and those that were idle. OSError, ValueError: it is not there, or
        another machine's."""
        with open(self.path("lines"), "rb") as file:
            saved = json.loads(file.read())
        if saved["stamp"] != self._stamp:
            raise ValueError(f"the state was saved by {saved['stamp']}, and this is {self._stamp}")
        if saved.get("memory", "") != self._memory:
            raise ValueError("the state of the machine and its memory are not of one moment")
        return saved["marks"], saved.get("idle", [])

    def keep(self, marks: dict[str, str], idle: list[str], memory: str) -> None:
        """What was saved is whole."""
        with open(self.path("lines"), "wb") as file:
            saved = {"stamp": self._stamp, "memory": memory, "marks": marks, "idle": idle}
            file.write(json.dumps(saved).encode())
        os.rename(self.path("state.new"), self.path("state"))

    def forget(self) -> None:
        """From here on memory and disk are not those of the state."""
        for name in ("state", "lines", "state.new"):
            try:
                os.unlink(self.path(name))
            except FileNotFoundError:
                continue

    def own(self, *names: str) -> None:
        """Has the tree hold these files, whatever layer they were in."""
        for name in names:
            os.close(os.open(self.path(name), os.O_RDWR | os.O_CLOEXEC))
