"""File operations that take one or two calls of the kernel: done at once, in the agent."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from . import _requests as requests
from ._config import AgentConfig
from ._faults import Fault, show
from ._frames import Json
from ._paths import locate, tidy


def describe(place: bytes, name: bytes, *, follow: bool = False, dir_fd: int | None = None) -> Json:
    """The wire form of what is at `place`, which the sandbox knows as `name`."""
    return info_of(os.stat(place, follow_symlinks=follow, dir_fd=dir_fd), place, name, dir_fd)


def info_of(status: os.stat_result, place: bytes, name: bytes, dir_fd: int | None = None) -> Json:
    mode = status.st_mode
    target: str | None = None
    if stat.S_ISLNK(mode):
        kind = "symlink"
        try:
            target = show(os.readlink(place, dir_fd=dir_fd))
        except OSError:  # it has just become something else
            target = ""
    else:
        kind = "file" if stat.S_ISREG(mode) else "directory" if stat.S_ISDIR(mode) else "other"
    return {
        "path": show(tidy(name)),
        "kind": kind,
        "size_bytes": status.st_size,
        "mode": stat.S_IMODE(mode),
        "uid": status.st_uid,
        "gid": status.st_gid,
        "modified_at": status.st_mtime,
        "target": target,
    }


def _stat(request: Json, config: AgentConfig) -> Json:
    name = requests.path(request, "path", config)
    return _told(name, lambda: describe(locate(name, config), name, follow=requests.flag(request, "follow")))


def _mkdir(request: Json, config: AgentConfig) -> Json:
    name = requests.path(request, "path", config)
    place = locate(name, config)
    mode = requests.optional_number(request, "mode", high=0o7777)

    def make() -> Json:
        if requests.flag(request, "parents"):
            try:
                make_parents(place)
                os.mkdir(place)
            except FileExistsError:
                if not os.path.isdir(place):
                    raise
        else:
            os.mkdir(place)
        if mode is not None:
            os.chmod(place, mode)
        return describe(place, name)

    return _told(name, make)


def make_parents(place: bytes) -> None:
    parent = os.path.dirname(place.rstrip(b"/"))
    if parent and not os.path.isdir(parent):
        try:
            os.makedirs(parent, exist_ok=True)
        except FileExistsError:  # it is something else than a directory
            raise NotADirectoryError(errno.ENOTDIR, "") from None


def _set(request: Json, config: AgentConfig) -> Json:
    name = requests.path(request, "path", config)
    place = locate(name, config)
    mode = requests.optional_number(request, "mode", high=0o7777)
    uid = requests.optional_number(request, "uid", high=(1 << 32) - 2)
    gid = requests.optional_number(request, "gid", high=(1 << 32) - 2)

    def change() -> Json:
        if uid is not None or gid is not None:
            # Before the mode: a change of owner clears the set-id bits.
            os.chown(place, -1 if uid is None else uid, -1 if gid is None else gid, follow_symlinks=False)
        if mode is not None:
            os.chmod(place, mode)
        return describe(place, name)

    return _told(name, change)


def _remove(request: Json, config: AgentConfig) -> Json:
    """What needs no walk; `_walk` has the rest."""
    name = requests.path(request, "path", config)
    place = locate(name, config)

    def remove() -> Json:
        try:
            if stat.S_ISDIR(os.lstat(place).st_mode):
                os.rmdir(place)
            else:
                os.unlink(place)
        except FileNotFoundError:
            if not requests.flag(request, "missing_ok"):
                raise
        return {}

    return _told(name, remove)


def _move(request: Json, config: AgentConfig) -> Json:
    source = requests.path(request, "source", config)
    name = requests.path(request, "destination", config)

    def move() -> Json:
        os.rename(locate(source, config), locate(name, config))
        return describe(locate(name, config), name)

    return _told(source, move)


def _told(name: bytes, action: Callable[[], Json]) -> Json:
    try:
        return action()
    except OSError as error:
        raise Fault.of(error, name) from None


OPERATIONS: dict[str, Callable[[Json, AgentConfig], Json]] = {
    "stat": _stat,
    "mkdir": _mkdir,
    "set": _set,
    "remove": _remove,
    "move": _move,
}
