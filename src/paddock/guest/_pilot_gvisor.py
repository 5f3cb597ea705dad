"""The pilot's part for gVisor: starts the gofer and the sentry, and tells the sentry to begin.

`runsc run` wants namespaces, mounts and a new root, which a jail neither has to give nor would: what they are for is
here already. So its two halves are started as it starts them itself, with descriptors in place of names, and one order
is sent to the sentry's control socket. All of that is known to work with the versions that a probe has found to.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from struct import pack
from typing import TYPE_CHECKING, Any

from ._faults import Fault
from ._kernel import install_filter
from ._loop import IN
from ._requests import text

if TYPE_CHECKING:
    from ._connection import Channel, Handler
    from ._frames import Json
    from ._pilot import Pilot

_ID = "sandbox"
_ANSWER_BYTES = 64 * 1024
_SENTRY_ENDS_SECONDS = 1.0
# linux/audit.h, and the numbers of calls: chroot(2); fsetxattr(2), fgetxattr, flistxattr, fremovexattr
_ARCHITECTURES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_CHROOT = {"x86_64": 161, "aarch64": 51}
_ATTRIBUTES = {"x86_64": (190, 193, 196, 199), "aarch64": (7, 10, 13, 16)}
# linux/bpf_common.h, linux/seccomp.h
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_SECCOMP_DATA_NR, _SECCOMP_DATA_ARCH = 0, 4
_ALLOW, _ERRNO = 0x7FFF_0000, 0x0005_0000


class Course:
    """`options`: `runsc`, `flags` of both halves, `served`: what both are told of the root, `spec` (OCI), `sentry_uid`
    where there is more than one id, `cpus`, `memory_bytes`."""

    def __init__(self, pilot: Pilot, options: Json) -> None:
        self._pilot = pilot
        self._runsc: str = options["runsc"]
        self._flags: list[str] = options["flags"]
        self._served: list[str] = options["served"]
        self._uid: int | None = options.get("sentry_uid")
        self._spec = json.dumps(options["spec"]).encode()
        self._cpus, self._memory = int(options["cpus"]), int(options["memory_bytes"])
        # Autobound: a name in this network namespace, where nobody is but us and what we start.
        self._control = socket.socket(socket.AF_UNIX)
        self._control.bind("")
        self._caller: socket.socket | None = None
        self._answer = b""
        self._booted = self._gofer = -1

    def start(self, ends: dict[str, int]) -> list[int]:
        machine = os.uname().machine
        # The gofer always changes its root, to the directory that it serves: that is "/", so nothing is to be done, and
        # the jail lets nobody do it. Of symbolic links it asks for attributes in a way that fails, and `ls -l` says so
        # of each; where there are no attributes it says nothing.
        answers = {_CHROOT[machine]: 0} | dict.fromkeys(_ATTRIBUTES[machine], errno.EOPNOTSUPP)
        _pretend(_ARCHITECTURES[machine], answers)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        gofer_io, sentry_io = socket.socketpair()
        mounts, mounts_writer = os.pipe2(os.O_CLOEXEC)
        self._booted, booted_writer = os.pipe2(os.O_CLOEXEC)
        gofer = self._run(
            "gofer",
            {"io-fds": gofer_io.fileno(), "mounts-fd": mounts_writer, "spec-fd": self._specification()},
            ["--bundle=/", "--setup-root=false", "--apply-caps=false", *self._served],
        )
        lines = [ends.get(identity, null) for identity in ("init", "user", "root")]
        sentry = self._run(
            "boot",
            {
                "io-fds": sentry_io.fileno(),
                "mounts-fd": mounts,
                "start-sync-fd": booted_writer,
                "controller-fd": self._control.fileno(),
                "spec-fd": self._specification(),
            },
            ["--bundle=/", "--attached", f"--cpu-num={self._cpus}", f"--total-memory={self._memory}", *self._served],
            lines=lines,
        )
        for fd in (null, mounts, mounts_writer, booted_writer):
            os.close(fd)
        gofer_io.close()
        sentry_io.close()
        self._gofer = os.pidfd_open(gofer)
        self._pilot.loop.watch(self._gofer, IN, self._gofer_died)
        self._pilot.loop.watch(self._booted, IN, self._has_booted)
        return [sentry]

    def open(self, channel: Channel, request: Json, descriptors: list[int]) -> Handler | None:
        raise Fault("unsupported", f"the pilot cannot do {text(request, 'op')!r}"[:200])

    def ending(self) -> None: ...

    def _gofer_died(self, events: int) -> None:
        """It ends with the sentry, a moment before that is seen perhaps: how the sentry ended says more."""
        self._pilot.loop.unwatch(self._gofer)
        self._pilot.loop.after(_SENTRY_ENDS_SECONDS, lambda: self._fail("the gofer has ended"))

    def _fail(self, words: str) -> None:
        self._pilot.note(words)
        self._pilot.end({"code": None, "signal": None})

    def _specification(self) -> int:
        """A file of its own for each: they share an offset otherwise. Closed when they are started."""
        fd = os.memfd_create("spec", os.MFD_CLOEXEC)
        os.write(fd, self._spec)
        return fd

    def _run(self, half: str, given: dict[str, int], arguments: list[str], lines: list[int] | None = None) -> int:
        """Starts `runsc <half>`; it finds what it is given from descriptor 3 on."""
        streams = {name: number for number, name in enumerate(given, 3)}
        ends = dict(given)
        words = [f"--{name}={number}" for name, number in streams.items()]
        for index, fd in enumerate(lines or ()):
            streams[f"line{index}"] = 3 + len(given) + index
            ends[f"line{index}"] = fd
            words.append(f"--stdio-fds={streams[f'line{index}']}")
        child: dict[str, Any] = {
            "argv": [self._runsc, *self._flags, half, *arguments, *words, *([_ID] if half == "boot" else [])],
            "env": {},
            "streams": streams,
        }
        if half == "boot" and self._uid is not None:
            child["uid"] = self._uid
        try:
            return self._pilot.spawn(child, ends)
        finally:
            os.close(given["spec-fd"])

    def _has_booted(self, events: int) -> None:
        self._pilot.loop.unwatch(self._booted)
        booted = os.read(self._booted, 1)
        os.close(self._booted)
        if not booted:
            return  # it has died, which is seen elsewhere
        self._caller = socket.socket(socket.AF_UNIX)
        self._caller.connect(self._control.getsockname())
        self._control.close()
        self._caller.sendall(json.dumps({"method": "containerManager.StartRoot", "arg": _ID}).encode())
        self._pilot.loop.watch(self._caller.fileno(), IN, self._answered)

    def _answered(self, events: int) -> None:
        assert self._caller is not None
        data = self._caller.recv(_ANSWER_BYTES)
        self._answer += data
        try:
            answer: Any = json.loads(self._answer)
        except ValueError:
            if data and len(self._answer) < _ANSWER_BYTES:
                return
            answer = {"success": False, "err": "the sentry's answer cannot be read"}
        self._pilot.loop.unwatch(self._caller.fileno())
        self._caller.close()
        if answer.get("success") is not True:
            self._fail(str(answer.get("err"))[:1000])


def _pretend(architecture: int, answers: dict[int, int]) -> None:
    """From now on these calls do nothing and are answered so, with an error or 0, here and in all that is started.

    Of filters that agree to keep a call from the kernel, the newest says what the caller is told.
    """
    program = [
        (_LOAD, 0, 0, _SECCOMP_DATA_ARCH),
        (_JUMP_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, _SECCOMP_DATA_NR),
    ]
    for number, answer in answers.items():
        program += [(_JUMP_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | answer)]
    program.append((_RETURN, 0, 0, _ALLOW))
    install_filter(b"".join(pack("HBBI", *instruction) for instruction in program))
