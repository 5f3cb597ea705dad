"""A sentry's state as files of a directory: the kernel's objects, and the memory of all programs.

A sentry that loads one trusts it, so one of our own sentries must have saved it. A seal proves this, with a key that no
process inside has. The seal doesn't cover memory, which belongs to the programs.
"""

from __future__ import annotations

import contextlib
import json
import os
from _blake2 import blake2b
from collections.abc import Sequence

from paddock.linux.descriptors import closing

from .control import Json

_FILES = ("kernel", "pages", "memory")
"""The files in the sentry's order: state, metadata of the pages, pages."""
_SEALED = 2
_ABOUT = "about"
_MOST = 1 << 28
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe without a writer blocks no reader
_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class SavedState:
    """The state that is, or will be, in `place`. `stamp`: for which sandbox it is."""

    def __init__(self, place: str, stamp: str, key: bytes) -> None:
        self.place = place
        self._stamp, self._key = stamp, key

    def prepare(self) -> None:
        """Remove a file of another kind in its place: it could lead to a path that programs can write."""
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(self.place)

    def exists(self) -> bool:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), _directory(self.place) as directory:
            os.stat(_ABOUT, dir_fd=directory, follow_symlinks=False)
            return True
        return False

    def of(self) -> str:
        """Return the stamp of the saved state. Raises OSError or ValueError if it is invalid."""
        with _directory(self.place) as directory:
            return str(_about(directory)["stamp"])

    def new_files(self) -> tuple[int, ...]:
        """Create the files for a save. The caller closes them."""
        self.prepare()
        os.makedirs(self.place, mode=0o700, exist_ok=True)
        self.forget()
        with _directory(self.place) as directory:
            return tuple(os.open(name, os.O_RDWR | _NEW, 0o600, dir_fd=directory) for name in _FILES)

    def conclude(self, files: tuple[int, ...]) -> None:
        """Complete the save after the sentry has written the files."""
        about = {"stamp": self._stamp, "seal": self._seal(files)}
        with _directory(self.place) as directory:
            fd = os.open(_ABOUT, os.O_WRONLY | _NEW, 0o600, dir_fd=directory)
        with open(fd, "wb") as file:
            file.write(json.dumps(about).encode())

    def open(self) -> tuple[int, ...]:
        """Open the saved state. Raises OSError or ValueError if it is invalid."""
        files: list[int] = []
        try:
            with _directory(self.place) as directory:
                about = _about(directory)
                if about["stamp"] != self._stamp:
                    raise ValueError(f"its memory was saved by {about['stamp']}, and this is {self._stamp}")
                files.extend(os.open(name, _READ, dir_fd=directory) for name in _FILES)
            if about["seal"] != self._seal(files):
                raise ValueError("its memory was not saved by a sandbox of this state directory, or was changed since")
        except BaseException:
            for fd in files:
                os.close(fd)
            raise
        return tuple(files)

    def forget(self) -> None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), _directory(self.place) as directory:
            for name in (_ABOUT, *_FILES):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=directory)

    def _seal(self, files: Sequence[int]) -> str:
        digest = blake2b(json.dumps([self._stamp]).encode(), key=self._key)
        for fd in files[:_SEALED]:
            size = os.fstat(fd).st_size
            if size > _MOST:
                raise ValueError(f"a state of {size} bytes is none")
            digest.update(size.to_bytes(8, "big") + os.pread(fd, size, 0))
        return digest.hexdigest()


def _directory(path: str) -> closing:
    """Open it itself: where a link is in its place, there is none."""
    return closing(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))


def _about(directory: int) -> Json:
    with open(os.open(_ABOUT, _READ, dir_fd=directory), "rb") as file:
        text = file.read(1 << 16)
    try:
        about = json.loads(text)
        return {"stamp": about["stamp"], "seal": about["seal"]}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("what is there is no memory of a sandbox") from None
