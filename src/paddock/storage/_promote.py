"""Taking differences over on the host: each file is written beside, synced and renamed into its place.

Places are found from the directory's own descriptor, through no link and no mount; what the host has there is looked at
again at the last moment.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

from paddock.errors import InvalidState
from paddock.linux import openat2
from paddock.model import FileKind
from paddock.storage._differences import Comparison, Difference
from paddock.storage._hostile import Node

_CHUNK = 1 << 20
_PLACE = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Promoter:
    """`owner` gets what is new: the directory's own. Used once."""

    def __init__(self, comparison: Comparison, owner: tuple[int, int]) -> None:
        self._layer, self._host = comparison.layer, comparison.host
        self._owner = owner
        self._root = os.geteuid() == 0
        self.done: dict[bytes, tuple[int, int, int]] = {}
        """What was written, as it is on the host now: `Node.identity`."""
        self.digests: dict[bytes, str] = {}
        """SHA-256 of the content of files that were written."""

    def apply(self, differences: Sequence[Difference]) -> None:
        """OSError, InvalidState: part of it is done then, `done` says which, and it can be done again."""
        folders = [d.path for d in differences if d.old and d.old.kind is FileKind.DIRECTORY and not _is_folder(d.new)]
        replaced = [path + b"/" for path in folders if self._becomes_file(path, differences)]
        early = [d for d in differences if d.new is None and any(d.path.startswith(path) for path in replaced)]
        for d in reversed(early):
            self._delete(d)
        for d in differences:
            if d.new is not None and d.new.kind is FileKind.DIRECTORY:
                self._make_directory(d)
        for d in differences:
            if d.new is not None and d.new.kind is not FileKind.DIRECTORY:
                self._write(d, d.new)
        for d in reversed(differences):
            if d.new is None and d not in early:
                self._delete(d)
        for d in reversed(differences):  # last, and what is inside first: a mode may keep its owner out
            if d.new is not None and d.new.kind is FileKind.DIRECTORY:
                self._set_mode(d.path, d.new.mode)

    @staticmethod
    def _becomes_file(path: bytes, differences: Sequence[Difference]) -> bool:
        return any(d.path == path and d.new is not None for d in differences)

    def _delete(self, d: Difference) -> None:
        with self._place(d.path) as (place, name):
            if place == -1:
                return
            self._check(d)
            try:
                if d.old is not None and d.old.kind is FileKind.DIRECTORY:
                    os.rmdir(name, dir_fd=place)
                else:
                    os.unlink(name, dir_fd=place)
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                # What the host has put into it meanwhile, or what was left out, keeps it.
                return
            os.fsync(place)

    def _make_directory(self, d: Difference) -> None:
        if d.old is not None and d.old.kind is FileKind.DIRECTORY:
            return
        with self._place(d.path) as (place, name):
            if place == -1:
                raise _moved(d.path)
            if d.old is not None:
                self._check(d)
                os.unlink(name, dir_fd=place)
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=place)
                self._give(name, place, None)

    def _write(self, d: Difference, new: Node) -> None:
        beside = b".paddock-" + os.urandom(8).hex().encode()
        with self._place(d.path) as (place, name):
            if place == -1:
                raise _moved(d.path)
            try:
                if new.kind is FileKind.SYMLINK:
                    os.symlink(self._layer.target(d.path), beside, dir_fd=place)
                else:
                    self._copy(d.path, place, beside, new)
                self._give(beside, place, d.old)
                self._check(d)
                if d.old is not None and d.old.kind is FileKind.DIRECTORY:
                    os.rmdir(name, dir_fd=place)
                os.rename(beside, name, src_dir_fd=place, dst_dir_fd=place)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(beside, dir_fd=place)
                raise
            os.fsync(place)
        now = self._host.node(d.path)
        if now is not None:
            self.done[d.path] = now.identity

    def _copy(self, path: bytes, place: int, beside: bytes, new: Node) -> None:
        fd, digest = os.open(beside, _NEW, 0o600, dir_fd=place), hashlib.sha256()
        try:
            with self._layer.reading(path) as source:
                while chunk := os.read(source, _CHUNK):
                    digest.update(chunk)
                    view = memoryview(chunk)
                    while view:
                        view = view[os.write(fd, view) :]
            os.fchmod(fd, new.mode & 0o777)
            os.fsync(fd)
        finally:
            os.close(fd)
        self.digests[path] = digest.hexdigest()

    def _give(self, name: bytes, place: int, old: Node | None) -> None:
        """What is replaced keeps its owner."""
        uid, gid = (old.uid, old.gid) if old is not None else self._owner
        if self._root:
            os.chown(name, uid, gid, dir_fd=place, follow_symlinks=False)
        else:
            with suppress(PermissionError):  # a group that the caller is not in
                os.chown(name, -1, gid, dir_fd=place, follow_symlinks=False)

    def _set_mode(self, path: bytes, mode: int) -> None:
        try:
            fd = openat2.open_beneath(self._host.fd, path, _PLACE, symlinks=False, cross_mounts=False)
        except OSError as error:
            raise _moved(path) from error
        try:
            os.fchmod(fd, mode & 0o777)
            os.fsync(fd)
        finally:
            os.close(fd)

    def _check(self, d: Difference) -> None:
        now = self._host.node(d.path)
        if d.old is None or now is None:
            same = now is None or now.kind is FileKind.DIRECTORY
        elif d.old.kind is FileKind.DIRECTORY:
            same = now.kind is FileKind.DIRECTORY
        else:
            same = now.kind is d.old.kind and now.identity == d.old.identity
        if not same:
            raise InvalidState(
                f"the host has changed {os.fsdecode(d.path)!r} at this moment; what came before it is done",
                hint="call again",
            )

    @contextmanager
    def _place(self, path: bytes) -> Generator[tuple[int, bytes]]:
        """The directory that it is in, and its name; -1 if there is no such directory any more."""
        folder, _, name = path.rpartition(b"/")
        try:
            fd = openat2.open_beneath(self._host.fd, folder or b".", _PLACE, symlinks=False, cross_mounts=False)
        except FileNotFoundError:
            yield -1, name
            return
        except OSError as error:
            raise _moved(path) from error
        try:
            yield fd, name
        finally:
            os.close(fd)


def _is_folder(node: Node | None) -> bool:
    return node is not None and node.kind is FileKind.DIRECTORY


def _moved(path: bytes) -> InvalidState:
    return InvalidState(f"the way to {os.fsdecode(path)!r} leads through something that is no directory of the host's")
