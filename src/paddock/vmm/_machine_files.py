"""The files of a virtual machine, in its sandbox's tree."""

from __future__ import annotations

import contextlib
import json
import os


class MachineFiles:
    """The files of one machine.

    `state` and its description `moment` exist only while no machine runs on them. A machine that loads them removes
    them, because memory and disk change from then on. `ram` lies in a layer below, in the image `memory`, which other
    machines share and none writes. A machine that boots has a separate one.
    """

    def __init__(self, directory: str, stamp: str, memory: str) -> None:
        self._directory, self._stamp, self._memory = directory, stamp, memory

    def path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def check(self) -> None:
        """Check the saved state. Raises OSError or ValueError if it is missing, or another machine's."""
        with open(self.path("moment"), "rb") as file:
            saved = json.loads(file.read())
        if saved["stamp"] != self._stamp:
            raise ValueError(f"the state was saved by {saved['stamp']}, and this is {self._stamp}")
        if saved.get("memory", "") != self._memory:
            raise ValueError("the state of the machine and its memory were not saved together")

    def commit(self, memory: str) -> None:
        """Put the complete saved state in place."""
        with open(self.path("moment"), "wb") as file:
            file.write(json.dumps({"stamp": self._stamp, "memory": memory}).encode())
        os.rename(self.path("state.new"), self.path("state"))

    def forget(self) -> None:
        """Delete the saved state, because memory and disk change from here on."""
        for name in ("state", "moment", "state.new"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(name))

    def copy_up(self, *names: str) -> None:
        """Copy these files into the tree, from the layer that has them."""
        for name in names:
            os.close(os.open(self.path(name), os.O_RDWR | os.O_CLOEXEC))
