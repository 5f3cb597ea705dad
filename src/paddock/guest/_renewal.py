"""Renewal: what a guest is told first when its machine was copied or slept, so that no two are the same.

Each part is done where it may be; where it may not, that is said and the rest is done. What it was told before and is
the same in the copy is not done again: an emulated processor takes a tenth of a second for it, and whoever has lowered
a ceiling of his own keeps it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Callable
from functools import partial
from struct import pack
from typing import Any, cast

from . import _hosts as hosts
from . import _machine as machine
from . import _requests as requests
from . import _uplink as uplink
from ._faults import Fault
from ._frames import Json
from ._fuse_relay import Share, is_mounted, mount_shares

# include/uapi/linux/random.h
_RNDADDENTROPY, _RNDRESEEDCRNG = 0x40085203, 0x5207
_MACHINE_ID = "/etc/machine-id"
_FILES = b"/run/paddock/files"
_LASTING = frozenset({"limits", "network"})


class Renewal:
    """`renew` does what a request says, and answers with `done` and `failed`, by name: `hostname`; `hosts`, the
    name that resolves to the sandbox itself; `machine_id`, `entropy`, the card's `mac` (hexadecimal); `wall_clock` in
    seconds; of a virtual machine `limits`: `open_files`, `processes`, `tmp_bytes`; whether it has a `network`; the
    certificates that it is to `trust` (`_uplink`); paths that must be `absent`; what to mount of its host's `files`,
    which come by the stream that `files` opens."""

    def __init__(self, files: Callable[[], int] | None = None) -> None:
        self._parts = {**_PARTS, "files": partial(_files, stream=files)}
        self._known: Json = {}

    def renew(self, request: Json) -> Json:
        done: list[str] = []
        failed: dict[str, str] = {}
        for name, part in self._parts.items():
            value = request.get(name)
            if value is None:
                continue
            try:
                if name not in _LASTING or self._known.get(name) != value:
                    self._known.pop(name, None)
                    part(request)
                    if name in _LASTING:
                        self._known[name] = value
                done.append(name)
            except OSError as error:
                failed[name] = errno.errorcode.get(error.errno or 0, "?")
        return {"done": done, "failed": failed}


def _hostname(request: Json) -> None:
    socket.sethostname(requests.text(request, "hostname"))


def _hosts(request: Json) -> None:
    file = os.open("/" + hosts.PATH, hosts.FLAGS, 0o644)
    try:
        hosts.name_sandbox(file, requests.text(request, "hosts"))
    finally:
        os.close(file)


def _machine_id(request: Json) -> None:
    text = _hexadecimal(request, "machine_id").hex().encode() + b"\n"
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(_MACHINE_ID, flags, 0o444)
    try:
        os.write(fd, text)
        if os.fstat(fd).st_size != len(text):  # to cut it first would have its blocks freed, and found anew
            os.ftruncate(fd, len(text))
    finally:
        os.close(fd)


def _entropy(request: Json) -> None:
    data = _hexadecimal(request, "entropy")
    fd = os.open("/dev/urandom", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _RNDADDENTROPY, pack("ii", 8 * len(data), len(data)) + data)
        fcntl.ioctl(fd, _RNDRESEEDCRNG)
    finally:
        os.close(fd)


def _wall_clock(request: Json) -> None:
    value = request.get("wall_clock")
    if type(value) not in (int, float):
        raise Fault("invalid_argument", "wall_clock must be seconds")
    time.clock_settime(time.CLOCK_REALTIME, value)  # pyright: ignore[reportArgumentType]


def _limits(request: Json) -> None:
    """Of a virtual machine, whose pid 1 this is."""
    limits: Any = request["limits"]
    if not isinstance(limits, dict):
        raise Fault("invalid_argument", "limits must be an object")
    limits = cast("Json", limits)
    machine.limit(
        open_files=requests.number(limits, "open_files", low=1, high=1 << 30),
        processes=requests.number(limits, "processes", low=1, high=1 << 22),
        tmp_bytes=requests.number(limits, "tmp_bytes", low=1),
    )


def _files(request: Json, stream: Callable[[], int] | None) -> None:
    """Of a virtual machine: exports of its host's appear where they belong. In one that was copied they are there."""
    if is_mounted(_FILES):
        return
    if stream is None:
        raise OSError(errno.ENODEV, "no files come here")
    given: Any = request["files"]
    shares: list[Share] = []
    for one in given:
        name, target = (requests.text(one, key).encode("utf-8", "surrogateescape") for key in ("name", "target"))
        shares.append(Share(name=name, target=target, writable=one.get("writable") is True))
    mount_shares(stream(), tuple(shares), _FILES)


def _network(request: Json) -> None:
    """Of a virtual machine."""
    uplink.lead(out=request["network"] is True)


def _trust(request: Json) -> None:
    given: Any = request["trust"]
    uplink.trust(given)


def _absent(request: Json) -> None:
    """EEXIST: one of them is there, or a link is on the way, which could lead anywhere."""
    given: Any = request["absent"]
    for path in given:
        if not isinstance(path, str):
            raise Fault("invalid_argument", "absent must be paths")
        _be_absent(path.encode("utf-8", "surrogateescape"))


def _be_absent(path: bytes) -> None:
    parts = path.split(b"/")
    for count in range(2, len(parts) + 1):
        try:
            status = os.lstat(b"/".join(parts[:count]))
        except (FileNotFoundError, NotADirectoryError):
            return
        if stat.S_ISLNK(status.st_mode):
            break
    raise FileExistsError(errno.EEXIST, "it is there")


def _mac(request: Json) -> None:
    uplink.rename_card(_hexadecimal(request, "mac"))


def _hexadecimal(request: Json, key: str) -> bytes:
    try:
        data = bytes.fromhex(requests.text(request, key))
    except ValueError:
        raise Fault("invalid_argument", f"{key} must be hexadecimal") from None
    if not 0 < len(data) <= 512:
        raise Fault("invalid_argument", f"{key} must have 1 to 512 bytes")
    return data


_PARTS: dict[str, Callable[[Json], None]] = {
    "absent": _absent,
    "entropy": _entropy,
    "hostname": _hostname,
    "hosts": _hosts,
    "limits": _limits,
    "mac": _mac,
    "machine_id": _machine_id,
    "network": _network,
    "trust": _trust,
    "wall_clock": _wall_clock,
}
