"""The files of a virtual machine, in its sandbox's tree; and how the parts of a driver report a step's end."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable

from ._loop import Loop, Timer

Done = Callable[[str | None], None]
"""Reports a step's end: `done(None)` after success, `done(why)` after a failure (`controller.NO_ROOM`: full disk)."""


class Deadline:
    """Waits for one answer at a time, for some seconds. If none comes, `late` runs, and the step has failed."""

    def __init__(self, loop: Loop, seconds: float, late: Callable[[], None], why: str) -> None:
        self._loop, self._seconds, self._late, self._why = loop, seconds, late, f"{why} within {seconds:.0f} seconds"
        self._done: Done | None = None
        self._timer: Timer | None = None

    def begin(self, done: Done) -> None:
        self._done = done
        self._timer = self._loop.after(self._seconds, self._time_out)

    def end(self, why: str | None) -> None:
        """Report the end of the step. Without effect if none is awaited."""
        done, self._done = self._done, None
        if self._timer is not None:
            self._timer.cancel()
        if done is not None:
            done(why)

    def _time_out(self) -> None:
        self._late()
        self.end(self._why)


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
