"""The files of a virtual machine, in the place that its sandbox's tree has for them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

Done = Callable[[str | None], None]
"""`done(None)`: it is so. `done(why)`: it is not, and why (`controller.NO_ROOM`: the disk is full)."""


class Place:
    """Files of the machine, in the sandbox's own tree. `state`, and `moment`, which says what that is of, are there
    only while nobody runs on them: whoever loads them removes them, since memory and disk go on. `ram` lies in a layer
    below, the image `memory`, which others run from too, and is never written; a machine that boots has its own."""

    def __init__(self, directory: str, stamp: str, memory: str) -> None:
        self._directory, self._stamp, self._memory = directory, stamp, memory

    def path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def check(self) -> None:
        """OSError, ValueError: what was saved is not there, or another machine's."""
        with open(self.path("moment"), "rb") as file:
            saved = json.loads(file.read())
        if saved["stamp"] != self._stamp:
            raise ValueError(f"the state was saved by {saved['stamp']}, and this is {self._stamp}")
        if saved.get("memory", "") != self._memory:
            raise ValueError("the state of the machine and its memory are not of one moment")

    def keep(self, memory: str) -> None:
        """Keep what was saved: it is whole."""
        with open(self.path("moment"), "wb") as file:
            file.write(json.dumps({"stamp": self._stamp, "memory": memory}).encode())
        os.rename(self.path("state.new"), self.path("state"))

    def forget(self) -> None:
        """From here on memory and disk are not those of the state."""
        for name in ("state", "moment", "state.new"):
            try:
                os.unlink(self.path(name))
            except FileNotFoundError:
                continue

    def own(self, *names: str) -> None:
        """Has the tree hold these files, whatever layer they were in."""
        for name in names:
            os.close(os.open(self.path(name), os.O_RDWR | os.O_CLOEXEC))
