"""The gVisor part of the controller: it starts the gofer and the sentry, and tells the sentry to boot or to restore.

`runsc run` needs namespaces, mounts and a new root, which a jail can't give it. The jail already provides their effect.
So this starts its two halves as runsc itself does, with descriptors in place of names. Then it sends one order to the
sentry's control socket. A probe has checked which versions work this way.
"""

from __future__ import annotations

import json
import os
import socket

from ._loop import FAILURES, IN
from ._saved import SavedState
from ._sentry import Sentry
from .control import Fault
from .controller import PORT, PORT_OUTPUT
from .process import install_filter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .control import Json
    from .controller import Controller

_ID = "sandbox"
# The same as runsc without another network (runsc/boot/network.go, DefaultLoopbackLink). Masks are base64.
_LOOPBACK = {
    "Name": "lo",
    "Addresses": [{"Address": "127.0.0.1", "PrefixLen": 8}, {"Address": "::1", "PrefixLen": 128}],
    "Routes": [
        {"Destination": {"IP": "127.0.0.0", "Mask": "/wAAAA=="}},
        {"Destination": {"IP": "::1", "Mask": "/////////////////////w=="}},
    ],
}
_SENTRY_ENDS_SECONDS = 1.0


class Driver:
    """The gVisor driver.

    `options`: `runsc`, `flags` and `filter` of both halves, `served` (arguments of both about the root), `spec` (OCI),
    `sentry_uid` with several ids, `cpus`, `memory_bytes`.

    `loopback`: the network is only the sentry's own. `saves` is there if it can save and load a state. It has `stamp`,
    `key` in hexadecimal, and `place` of this sandbox's state. `baked` is the place of a shared initial state. `before`
    maps stamps of older states to the flags with which they can still run. `forget`: a place with a state that must
    never load. `device`: the path of the device file of its platform.
    """

    pipes = True

    def __init__(self, controller: Controller, options: Json) -> None:
        self._controller = controller
        self._options: Any = options
        self._flags: list[str] = options["flags"]
        self._saves: Any = options.get("saves")
        self._device: str | None = options.get("device")
        self._files: tuple[int, ...] = ()
        self._paused = False
        # Autobound: a name in this network namespace, which has only our processes.
        self._control = socket.socket(socket.AF_UNIX)
        self._control.bind("")
        self._sentry = Sentry(controller.loop, self._control.getsockname())
        self._booted = self._gofer = -1

    def start(self, ends: dict[str, int]) -> list[int]:
        self._find_state()
        options = self._options
        install_filter(options["filter"])
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        gofer_io, sentry_io = socket.socketpair()
        mounts, mounts_writer = os.pipe2(os.O_CLOEXEC)
        self._booted, booted_writer = os.pipe2(os.O_CLOEXEC)
        gofer = self._run(
            "gofer",
            {"io-fds": gofer_io.fileno(), "mounts-fd": mounts_writer, "spec-fd": self._specification()},
            ["--setup-root=false", "--apply-caps=false"],
        )
        device = self._open_device()
        sentry = self._run(
            "boot",
            {
                "io-fds": sentry_io.fileno(),
                "mounts-fd": mounts,
                "start-sync-fd": booted_writer,
                "controller-fd": self._control.fileno(),
                "spec-fd": self._specification(),
                **({"device-fd": device[0]} if device else {}),
            },
            ["--attached", f"--cpu-num={options['cpus']}", f"--total-memory={options['memory_bytes']}"],
            streams=(ends[PORT], ends[PORT_OUTPUT], null),
        )
        for fd in (null, mounts, mounts_writer, booted_writer, *device):
            os.close(fd)
        gofer_io.close()
        sentry_io.close()
        self._gofer = os.pidfd_open(gofer)
        self._controller.loop.watch(self._gofer, IN, self._gofer_died)
        self._controller.loop.watch(self._booted, IN, self._has_booted)
        return [sentry]

    def show(self, request: Json) -> None:
        raise Fault("unsupported", "this level shows its files from the start")

    def on_end(self) -> None: ...

    @property
    def saves(self) -> bool:
        return self._saves is not None

    async def _start_guest(self) -> None:
        try:
            await self._boot()
        except FAILURES as error:
            self._fail(str(error).partition("\n")[0][:1000])

    async def _boot(self) -> None:
        if self._options.get("loopback"):
            await self._sentry.call("Network.CreateLinksAndRoutes", {"LoopbackLinks": [_LOOPBACK]})
        if not self._files:
            await self._sentry.call("containerManager.StartRoot", _ID)
            return
        device = self._open_device()  # what it has begun with was for a machine that this one takes the place of
        files = (*self._files, *device)
        try:
            options = {"HavePagesFile": True, "HaveDeviceFile": bool(device)}
            await self._sentry.call("containerManager.Restore", options, files)
        finally:
            for fd in files:
                os.close(fd)
        self._own_state().forget()

    async def save(self, image: int | None, memory: str) -> None:
        await self._sentry.call("containerManager.Pause", {})
        self._paused = True
        saved = self._own_state()
        files = saved.new_files()
        try:
            options = {"metadata": {"compression": "none"}, "have_pages_file": True, "Resume": True}
            await self._sentry.call("containerManager.Checkpoint", options, files)
            saved.conclude(files)
        finally:
            for fd in files:
                os.close(fd)

    async def thaw(self) -> None:
        self._own_state().forget()
        if self._paused:
            self._paused = False
            await self._sentry.call("containerManager.Resume", {})

    # parts of the driver

    def _own_state(self) -> SavedState:
        return self._state(self._saves["place"])

    def _state(self, place: str) -> SavedState:
        return SavedState(place, self._saves["stamp"], bytes.fromhex(self._saves["key"]))

    def _find_state(self) -> None:
        """Find the state to restore. Raises OSError or ValueError if there is an invalid one."""
        if self._saves is None:
            if (place := self._options.get("forget")) is not None:
                SavedState(place, "", b"").forget()  # the files go on without it, and must not meet it again
            return
        own = self._own_state()
        own.prepare()
        of = own.of() if own.exists() else self._saves["stamp"]
        if of in (before := self._saves.get("before", {})):
            self._flags, self._device = before[of], None
            self._saves = {**self._saves, "stamp": of}
        elif of != self._saves["stamp"]:
            self._controller.note(f"only the files go on: its memory is of {of}, and this is {self._saves['stamp']}")
            own.forget()
        places = (self._saves["place"], self._saves.get("baked"))
        found = next((saved for place in places if place is not None and (saved := self._state(place)).exists()), None)
        if found is not None:
            self._files = found.open()
            self._controller.restored = True

    def _open_device(self) -> tuple[int, ...]:
        """OSError: it is not there. The sentry may open none itself."""
        return () if self._device is None else (os.open(self._device, os.O_RDWR | os.O_CLOEXEC),)

    def _gofer_died(self, events: int) -> None:
        """Note the gofer's end. It ends with the sentry, perhaps a moment before: how the sentry ended says more."""
        self._controller.loop.unwatch(self._gofer)
        self._controller.loop.after(_SENTRY_ENDS_SECONDS, lambda: self._fail("the gofer has ended"))

    def _fail(self, words: str) -> None:
        self._controller.note(words)
        self._controller.end({"code": None, "signal": None})

    def _specification(self) -> int:
        """Open a separate file for each half, because they would share an offset. `_run` closes it after the start."""
        fd = os.memfd_create("spec", os.MFD_CLOEXEC)
        os.write(fd, json.dumps(self._options["spec"]).encode())
        return fd

    def _run(
        self, half: str, descriptors: dict[str, int], arguments: list[str], *, streams: tuple[int, ...] = ()
    ) -> int:
        """Start `runsc <half>`, which finds the descriptors of `descriptors` from number 3 on."""
        ends = descriptors | {f"stdio{number}": fd for number, fd in enumerate(streams)}
        numbers = {name: number for number, name in enumerate(ends, 3)}
        words = [f"--{name if name in descriptors else 'stdio-fds'}={number}" for name, number in numbers.items()]
        options = self._options
        child: dict[str, Any] = {
            "argv": [options["runsc"], *self._flags, half, "--bundle=/", *arguments, *options["served"], *words],
            "env": {},
            "streams": numbers,
        }
        if half == "boot":
            child["argv"].append(_ID)
            if (uid := options.get("sentry_uid")) is not None:
                child["uid"] = uid
        try:
            return self._controller.spawn(child, ends)
        finally:
            os.close(descriptors["spec-fd"])

    def _has_booted(self, events: int) -> None:
        self._controller.loop.unwatch(self._booted)
        booted = os.read(self._booted, 1)
        os.close(self._booted)
        if not booted:
            return  # it has died, which is seen elsewhere
        self._control.close()
        self._controller.loop.start(self._start_guest())
