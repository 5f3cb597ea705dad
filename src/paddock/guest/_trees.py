"""Copy, move and remove whole trees. They run in a worker. Names inside are an attacker's: links are never followed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable

from . import _requests as requests
from ._config import AgentConfig
from ._faults import Fault
from ._files import describe
from ._frames import Json
from ._paths import locate, open_directory
from ._worker import Streams, Work

_MAX_DEPTH = 256
_PIECE = 1 << 30


def copy(request: Json, config: AgentConfig) -> Work:
    return _two_places(request, config, _copy)


def move(request: Json, config: AgentConfig) -> Work:
    """Across file systems, where rename cannot."""

    def across(source: bytes, destination: bytes) -> None:
        _copy(source, destination)
        _remove(source)

    return _two_places(request, config, across)


_Action = Callable[[bytes, bytes], None]


def _two_places(request: Json, config: AgentConfig, action: _Action) -> Work:
    source = requests.path(request, "source", config)
    name = requests.path(request, "destination", config)
    here, there = locate(source, config).rstrip(b"/") or b"/", locate(name, config).rstrip(b"/") or b"/"

    def work(streams: Streams) -> Json:
        try:
            action(here, there)
            return describe(there, name)
        except OSError as error:
            raise Fault.of(error, source) from None

    return work


def remove(request: Json, config: AgentConfig) -> Work:
    name = requests.path(request, "path", config)
    place = locate(name, config).rstrip(b"/") or b"/"
    missing_ok = requests.flag(request, "missing_ok")

    def work(streams: Streams) -> Json:
        try:
            _remove(place)
        except FileNotFoundError as error:
            if not missing_ok:
                raise Fault.of(error, name) from None
        except OSError as error:
            raise Fault.of(error, name) from None
        return {}

    return work


# copy


def _copy(source: bytes, destination: bytes) -> None:
    status = os.lstat(source)
    if not stat.S_ISDIR(status.st_mode):
        _copy_one(source, destination, status)
        return
    inside = os.path.realpath(destination) + b"/"
    if inside.startswith(os.path.realpath(source).rstrip(b"/") + b"/"):
        raise Fault("invalid_argument", "a directory cannot be copied into itself")
    # Each directory is made open to us and gets its own mode when everything is in it.
    modes: list[tuple[bytes, int]] = []
    stack = [(source, destination, 0)]
    while stack:
        here, there, depth = stack.pop()
        if depth > _MAX_DEPTH:
            raise OSError(errno.ENAMETOOLONG, "")
        status = os.lstat(here)
        if stat.S_ISDIR(status.st_mode):
            os.mkdir(there, 0o700)
            modes.append((there, stat.S_IMODE(status.st_mode)))
            stack += [(here + b"/" + name, there + b"/" + name, depth + 1) for name in os.listdir(here)]
        else:
            _copy_one(here, there, status)
    for there, mode in reversed(modes):
        os.chmod(there, mode)


def _copy_one(source: bytes, destination: bytes, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source), destination)
    elif stat.S_ISFIFO(status.st_mode):
        os.mkfifo(destination, stat.S_IMODE(status.st_mode))
    elif stat.S_ISREG(status.st_mode):
        _copy_file(source, destination)
    # Sockets and devices are not data; cp -r of a socket would fail, and a build directory may hold one.


def _copy_file(source: bytes, destination: bytes) -> None:
    reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(reader)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "")
        writer = os.open(destination, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            _transfer(reader, writer)
            os.fchmod(writer, stat.S_IMODE(status.st_mode))
            os.utime(writer, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _transfer(reader: int, writer: int) -> None:
    try:
        while os.copy_file_range(reader, writer, _PIECE):
            pass
        return
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            raise
    while os.sendfile(writer, reader, None, _PIECE):  # pyright: ignore[reportArgumentType]
        pass


# remove


def _remove(place: bytes) -> None:
    """Works by descriptors, so that a directory that becomes a link meanwhile leads nowhere, at any depth."""
    parent, name = os.path.split(place)
    top = os.open(parent or b"/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not _unlink(top, name):
            heaps = [name]
            while heaps:
                # What lies too deep is moved up beside the top, and its turn comes before that of what it was in.
                aside = _clear(top, heaps[-1], b".paddock-rm-%d-%d" % (os.getpid(), len(heaps)))
                if aside is None:
                    heaps.pop()
                else:
                    heaps.append(aside)
    finally:
        os.close(top)


def _clear(top: int, name: bytes, aside: bytes) -> bytes | None:
    """Removes a directory with all that is in it; or moves something too deep to `aside`, and returns that."""
    path, fds = [name], [_open_directory(top, name)]
    try:
        while fds:
            inner = next((entry for entry in os.listdir(fds[-1]) if not _unlink(fds[-1], os.fsencode(entry))), None)
            if inner is not None and len(fds) >= _MAX_DEPTH:
                os.rename(os.fsencode(inner), aside, src_dir_fd=fds[-1], dst_dir_fd=top)
                return aside
            if inner is not None:
                path.append(os.fsencode(inner))
                fds.append(_open_directory(fds[-1], path[-1]))
                continue
            os.close(fds.pop())
            # Not empty: somebody has put something there, and we come to it again.
            _unlink(fds[-1] if fds else top, path.pop())
    finally:
        for fd in fds:
            os.close(fd)
    return None


def _open_directory(parent: int, name: bytes) -> int:
    """Made ours to empty where its mode says otherwise: that protects its owner from mistakes, not from `rm -r`."""
    try:
        fd = open_directory(parent, name)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=parent)
        fd = open_directory(parent, name)
    if os.fstat(fd).st_mode & 0o700 != 0o700:
        with contextlib.suppress(PermissionError):
            os.fchmod(fd, 0o700)
    return fd


def _unlink(directory: int, name: bytes) -> bool:
    """False: it is a directory with something in it."""
    try:
        os.unlink(name, dir_fd=directory)
        return True
    except IsADirectoryError:
        pass
    except PermissionError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise
    try:
        os.rmdir(name, dir_fd=directory)
        return True
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
