"""Writes a sandbox's changes in a mounted directory into that directory, as the caller.

The daemon has decided about the changes. This process opens the directory and writes. It writes each file under a
temporary name, syncs it, and renames it into place. It finds paths from the directory's descriptor, through no link and
no mount. It checks the host's file again at the last moment. After each step it adds a note to the journal, so the
daemon knows the progress even if this process dies.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress

from paddock.errors import InvalidStateError, PlatformError, exhaustion
from paddock.linux import openat2
from paddock.linux.descriptors import closing, write_all
from paddock.model import FileKind, PlannedChange, PlannedNode, PromotionPlan

_CHUNK = 1 << 20
_LOOK = os.O_PATH | os.O_NOFOLLOW
_PLACE = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS = {stat.S_IFREG: FileKind.FILE, stat.S_IFDIR: FileKind.DIRECTORY, stat.S_IFLNK: FileKind.SYMLINK}


def promote(plan: PromotionPlan, layer: int, journal: int) -> None:
    """Write the changes of `plan` from the directory `layer`, whose descriptor the caller closes, into `plan.source`.

    Raises InvalidStateError, PlatformError or ResourceExhaustedError. Then a part is complete, and the caller can
    repeat the call.
    """
    if not plan.changes:
        return
    try:
        host = os.open(plan.source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidStateError(f"{plan.source!r}: {error.strerror}") from error
    with closing(host):
        info = os.fstat(host)
        if (info.st_dev, info.st_ino) != plan.directory:
            raise InvalidStateError(f"{plan.source!r} is another directory for this program than for the daemon")
        writer = _Writer(host, layer, journal, info)
        try:
            writer.apply(plan.changes)
        except OSError as error:
            done = f"{writer.done} of {len(plan.changes)} changes are done"
            raise exhaustion(error) or PlatformError(
                f"{plan.source}: {error.strerror}; {done}", hint="fix it and call again: what is done isn't done twice"
            ) from error


class _Writer:
    def __init__(self, host: int, layer: int, journal: int, directory: os.stat_result) -> None:
        self._host, self._layer, self._journal = host, layer, journal
        self._owner = directory.st_uid, directory.st_gid
        self._root = os.geteuid() == 0
        self._umask = _umask()
        self.done = 0

    def apply(self, changes: tuple[PlannedChange, ...]) -> None:
        numbered = [(number, os.fsencode(change.path), change) for number, change in enumerate(changes)]
        files = tuple(path + b"/" for _, path, change in numbered if _is_folder(change.old) and _is_content(change.new))
        early = {number for number, path, change in numbered if change.new is None and path.startswith(files)}
        for number, path, change in reversed(numbered):
            if number in early:
                self._delete(number, path, change)
        for number, path, change in numbered:
            if _is_folder(change.new):
                self._make_directory(number, path, change)
        for number, path, change in numbered:
            if change.new is not None and _is_content(change.new):
                self._write(number, path, change, change.new)
        for number, path, change in reversed(numbered):
            if change.new is None and number not in early:
                self._delete(number, path, change)
        for _, path, change in reversed(numbered):  # last, and what is inside first: a mode may keep its owner out
            if change.new is not None and _is_folder(change.new):
                self._set_mode(path, change.old, change.new)

    def _delete(self, number: int, path: bytes, change: PlannedChange) -> None:
        with self._place(path) as (place, name):
            if place != -1:
                self._check(path, change.old)
                try:
                    if _is_folder(change.old):
                        os.rmdir(name, dir_fd=place)
                    else:
                        os.unlink(name, dir_fd=place)
                    os.fsync(place)
                except OSError as error:
                    # New files of the host, or ones outside this promotion, keep the directory.
                    if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                        raise
        self._note(number)

    def _make_directory(self, number: int, path: bytes, change: PlannedChange) -> None:
        if not _is_folder(change.old):
            with self._place(path) as (place, name):
                if place == -1:
                    raise _moved(path)
                if change.old is not None:
                    self._check(path, change.old)
                    os.unlink(name, dir_fd=place)
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=place)
                    self._give(name, place, None)
        self._note(number)

    def _write(self, number: int, path: bytes, change: PlannedChange, new: PlannedNode) -> None:
        staged = b".paddock-" + os.urandom(8).hex().encode()
        with self._place(path) as (place, name):
            if place == -1:
                raise _moved(path)
            try:
                if new.target is not None:
                    os.symlink(os.fsencode(new.target), staged, dir_fd=place)
                else:
                    self._copy(path, place, staged, self._mode(change.old, new))
                self._give(staged, place, change.old)
                self._check(path, change.old)
                if _is_folder(change.old):
                    os.rmdir(name, dir_fd=place)
                os.rename(staged, name, src_dir_fd=place, dst_dir_fd=place)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(staged, dir_fd=place)
                raise
            os.fsync(place)
            info = os.stat(name, dir_fd=place, follow_symlinks=False)
        self._note(number, *_identity(info))

    def _copy(self, path: bytes, place: int, staged: bytes, mode: int) -> None:
        with closing(os.open(staged, _NEW, 0o600, dir_fd=place)) as fd:
            with closing(self._open_in_layer(path)) as source:
                while chunk := os.read(source, _CHUNK):
                    write_all(fd, chunk)
            os.fchmod(fd, mode)
            os.fsync(fd)

    def _open_in_layer(self, path: bytes) -> int:
        """Open a file of the layer. The layer is a private copy, so this changes modes that exclude us."""
        try:
            return _open(self._layer, path, _READ)
        except PermissionError:
            with closing(_open(self._layer, path, _LOOK)) as place:
                os.chmod(f"/proc/self/fd/{place}", 0o700)
            return _open(self._layer, path, _READ)

    def _mode(self, old: PlannedNode | None, new: PlannedNode) -> int:
        """Return the sandbox's mode without the umask. Bits of the host's file stay."""
        kept = 0 if old is None or old.kind is not new.kind else old.mode
        return new.mode & 0o777 & (~self._umask | kept)

    def _give(self, name: bytes, place: int, old: PlannedNode | None) -> None:
        """Set the owner.

        A replaced file keeps its owner. A new file belongs to the caller, but if that is root, to the directory's
        owner.
        """
        uid, gid = (old.uid, old.gid) if old is not None else self._owner
        if self._root:
            os.chown(name, uid, gid, dir_fd=place, follow_symlinks=False)
        else:
            with suppress(PermissionError):  # a group that the caller is not in
                os.chown(name, -1, gid, dir_fd=place, follow_symlinks=False)

    def _set_mode(self, path: bytes, old: PlannedNode | None, new: PlannedNode) -> None:
        try:
            fd = _open(self._host, path, _PLACE)
        except OSError as error:
            raise _moved(path) from error
        with closing(fd):
            os.fchmod(fd, self._mode(old, new))
            os.fsync(fd)

    def _check(self, path: bytes, old: PlannedNode | None) -> None:
        try:
            fd = _open(self._host, path, _LOOK)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            return
        with closing(fd):
            info = os.fstat(fd)
        kind = _KINDS.get(stat.S_IFMT(info.st_mode))
        if old is None or old.kind is FileKind.DIRECTORY:
            same = kind is FileKind.DIRECTORY
        else:
            same = kind is old.kind and _identity(info) == old.identity
        if not same:
            raise InvalidStateError(
                f"the host has changed {os.fsdecode(path)!r} at this moment; what came before it is done",
                hint="call again",
            )

    @contextmanager
    def _place(self, path: bytes) -> Generator[tuple[int, bytes]]:
        """Yield the directory of a path, and the name in it. Yield -1 if the directory is missing."""
        folder, _, name = path.rpartition(b"/")
        try:
            fd = _open(self._host, folder or b".", _PLACE)
        except FileNotFoundError:
            yield -1, name
            return
        except PermissionError:
            raise
        except OSError as error:
            raise _moved(path) from error
        with closing(fd):
            yield fd, name

    def _note(self, *numbers: int) -> None:
        os.write(self._journal, (" ".join(map(str, numbers)) + "\n").encode())
        self.done += 1


def _open(directory: int, path: bytes, flags: int) -> int:
    """Open a path below a directory, through no link and no mount."""
    return openat2.open_beneath(directory, path, flags, cross_mounts=False)


def _identity(info: os.stat_result) -> tuple[int, int, int]:
    """Return the same value as `storage.pool.hostile.Node.identity`."""
    return info.st_ino, info.st_ctime_ns, info.st_size


def _umask() -> int:
    """Return this process's umask, which os.umask only returns after a change."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1], 8) for line in file if line.startswith("Umask:"))


def _is_folder(node: PlannedNode | None) -> bool:
    return node is not None and node.kind is FileKind.DIRECTORY


def _is_content(node: PlannedNode | None) -> bool:
    return node is not None and node.kind is not FileKind.DIRECTORY


def _moved(path: bytes) -> InvalidStateError:
    return InvalidStateError(
        f"the way to {os.fsdecode(path)!r} leads through something that is not a directory of the host"
    )
