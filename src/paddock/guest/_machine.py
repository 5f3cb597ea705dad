"""Pid 1 of a virtual machine, before it serves: loads modules, finds its disks and ports, and makes the root directory.

The root is an overlay: a read-only view of template and programs below, an empty disk of the sandbox's own above.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import time
from collections.abc import Mapping
from typing import Any

from . import _uplink as uplink
from ._ceilings import GROUP as _GROUP

_libc = ctypes.CDLL(None, use_errno=True)
_FINIT_MODULE = 313  # x86_64
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _MOVE = 1, 2, 4, 8, 32, 8192
_SECONDS = 60.0
_OWN_PROCESSES = 8
_DISKS = {"1": "view", "0": "disk"}
_ROOT = "/root"
_GROUPS = "/sys/fs/cgroup"
_MEMORY_DIRECTORIES = {"/dev/shm": "1777", "/tmp": "1777", "/run": "755", "/run/lock": "1777"}  # noqa: S108 (mounted on)
_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}


def settle(options: Mapping[str, Any]) -> None:
    """Afterwards `/` is the sandbox's, and what was there before is out of reach.

    `modules`: paths, in order; `directories`: by path, who owns what must be there ([uid, gid]).
    """
    _mount("proc", "/proc", "proc")
    _mount("sysfs", "/sys", "sysfs")
    _mount("devtmpfs", "/dev", "devtmpfs")
    for path in options["modules"]:
        _load(path)
    disks = _disks()
    _mount(disks["view"], "/view", "erofs", _RDONLY | _NODEV)
    _mount(disks["disk"], "/disk", "ext4", _NODEV, "noauto_da_alloc,init_itable=0")
    for name in ("upper", "work"):
        os.makedirs(f"/disk/{name}", exist_ok=True)
    top = os.stat("/view")
    os.chown("/disk/upper", top.st_uid, top.st_gid)
    os.chmod("/disk/upper", top.st_mode & 0o7777)
    _mount("overlay", _ROOT, "overlay", 0, "lowerdir=/view,upperdir=/disk/upper,workdir=/disk/work,redirect_dir=on")
    _furnish(_ROOT)
    for path, (uid, gid) in options.get("directories", {}).items():
        place = _ROOT + path
        if not os.path.isdir(place):
            os.makedirs(place)
            os.chown(place, uid, gid)
    _group()
    uplink.set_up(b"lo", up=True)
    os.chdir(_ROOT)
    _call("mount", b".", b"/", None, ctypes.c_ulong(_MOVE), None)
    os.chroot(".")
    os.chdir("/")


def port(name: str) -> int:
    """The virtio port that the host calls so, open; it appears some time after its driver."""
    until = time.monotonic() + _SECONDS
    while True:
        for entry in _listed("/sys/class/virtio-ports"):
            if _text(f"/sys/class/virtio-ports/{entry}/name") == name:
                return os.open(f"/dev/{entry}", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
        if time.monotonic() > until:
            raise OSError(f"no virtio port {name}")
        time.sleep(0.005)


def _furnish(root: str) -> None:
    _mount("proc", f"{root}/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    _mount("sysfs", f"{root}/sys", "sysfs", _NOSUID | _NODEV | _NOEXEC | _RDONLY)
    _mount("devtmpfs", f"{root}/dev", "devtmpfs", _NOSUID | _NOEXEC)
    _mount("devpts", f"{root}/dev/pts", "devpts", _NOSUID | _NOEXEC, "mode=620,gid=5,ptmxmode=666")
    for name, mode in _MEMORY_DIRECTORIES.items():
        _mount("tmpfs", root + name, "tmpfs", _NOSUID | _NODEV, f"mode={mode}")
    for name, target in _LINKS.items():
        if not os.path.lexists(f"{root}/dev/{name}"):
            os.symlink(target, f"{root}/dev/{name}")


def limit(open_files: int, processes: int, tmp_bytes: int) -> None:
    """For all who live in there and all whom they start. Who is root in there can lift it again, for himself alone."""
    with open(f"{_GROUP}/cgroup.procs", "rb") as file:
        for pid in map(int, file.read().split()):
            with contextlib.suppress(ProcessLookupError):  # one that is just ending
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_files, open_files))
    _write(f"{_GROUP}/pids.max", b"%d" % (processes + _OWN_PROCESSES))
    for name in _MEMORY_DIRECTORIES:
        flags = ctypes.c_ulong(_REMOUNT | _NOSUID | _NODEV)
        _call("mount", None, name.encode(), None, flags, f"size={tmp_bytes}".encode())


def _group() -> None:
    """One for all that the sandbox runs."""
    _mount("cgroup2", f"{_ROOT}{_GROUPS}", "cgroup2", _NOSUID | _NODEV | _NOEXEC)
    os.mkdir(_ROOT + _GROUP)
    _write(f"{_ROOT}{_GROUPS}/cgroup.subtree_control", b"+pids")
    with contextlib.suppress(OSError):  # only to tell what struck: the size of the machine holds
        _write(f"{_ROOT}{_GROUPS}/cgroup.subtree_control", b"+memory")
    _write(f"{_ROOT}{_GROUP}/cgroup.procs", b"%d" % os.getpid())


def _write(path: str, data: bytes) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(data)


def _load(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.syscall(ctypes.c_long(_FINIT_MODULE), ctypes.c_int(fd), b"", ctypes.c_int(0)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{path}: {os.strerror(number)}")
    finally:
        os.close(fd)


def _disks() -> dict[str, str]:
    """The two block devices: the view can only be read. Not every host can give them names of its own."""
    found: dict[str, str] = {}
    until = time.monotonic() + _SECONDS
    while len(found) < len(_DISKS):
        for name in _listed("/sys/block"):
            if name.startswith("vd") and (what := _DISKS.get(_text(f"/sys/block/{name}/ro"))) is not None:
                found[what] = f"/dev/{name}"
        if time.monotonic() > until:
            raise OSError(f"no disks but {found}")
        time.sleep(0.005 if len(found) < len(_DISKS) else 0)
    return found


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:  # no codecs here but those that are built in
            return file.read().decode("ascii", "replace").strip()
    except OSError:
        return ""


def _mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    os.makedirs(target, exist_ok=True)
    _call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode() or None)


def _call(name: str, *arguments: Any) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name} {arguments[:3]}: {os.strerror(number)}")
