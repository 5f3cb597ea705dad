"""What has left the pool, each whole or not there: archives of evicted workspaces, and by digest what was taken out of
sandboxes.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from paddock.errors import InvalidState, NotFound, PlatformError, ResourceExhausted
from paddock.linux.descriptors import closing
from paddock.storage._whole import sync_directory

_PART = ".part"


class Archive:
    """One that is being written."""

    def __init__(self, fd: int, most_bytes: int) -> None:
        self._fd, self._most = fd, most_bytes
        self._digest = hashlib.sha256()
        self.bytes = 0

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def write(self, data: bytes) -> None:
        """ResourceExhausted beyond what there is room for: what comes from inside has no end by itself."""
        self.bytes += len(data)
        if self.bytes > self._most:
            raise ResourceExhausted(f"the archive is larger than {self._most >> 20} MiB")
        self._digest.update(data)
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]


class KeptArchives:
    """The archives of one state directory, by the id of what they hold. Nobody but paddock's own uid may read them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextmanager
    def writing(self, name: str, most_bytes: int) -> Generator[Archive]:
        """An archive that is there when the block has ended, through a loss of power too; not if it raises."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = self._directory / f"{name}{_PART}"
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with closing(fd):
                yield Archive(fd, most_bytes)
                os.fsync(fd)
            part.rename(self._directory / name)
            sync_directory(self._directory)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def reading(self, name: str, size: int) -> Generator[bytes]:
        """Its content, in pieces of `size` bytes."""
        with (self._directory / name).open("rb") as file:
            while data := file.read(size):
                yield data

    def check(self, name: str, digest: str) -> None:
        """PlatformError: it is not there, or not what was written."""
        try:
            with (self._directory / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise PlatformError(f"{self._directory / name} cannot be read: {error.strerror}") from error
        if found != digest:
            raise PlatformError(
                f"{self._directory / name} is damaged: its digest is not the one that was recorded",
                hint="it is a tar archive: what is whole of it can be taken out by hand",
            )

    def remove(self, name: str) -> None:
        """Nothing if there is none."""
        for path in (self._directory / name, self._directory / f"{name}{_PART}"):
            path.unlink(missing_ok=True)

    def names(self) -> frozenset[str]:
        """Half-written ones too."""
        with suppress(FileNotFoundError):
            return frozenset(name.removesuffix(_PART) for name in os.listdir(self._directory))
        return frozenset()


_DIGEST = re.compile(r"[0-9a-f]{64}")
_INCOMING = ".incoming-"


class Incoming:
    """Bytes on their way in. `digest` and `size` are of what came until now."""

    def __init__(self, directory: Path, most: int) -> None:
        self._directory, self._most = directory, most
        self._path, self._fd = directory / f"{_INCOMING}{os.urandom(8).hex()}", -1
        self._sum = hashlib.sha256()
        self.size = 0

    def open(self) -> None:
        """To be closed."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def keep(self) -> None:
        """What was written is there, and on the disk, when this returns."""
        os.fsync(self._fd)
        self._path.rename(self._directory / self.digest)
        sync_directory(self._directory)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._path.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        """InvalidState: it is more than was agreed."""
        self.size += len(data)
        if self.size > self._most:
            raise InvalidState(f"an artifact has at most {self._most >> 20} MiB", hint="take a part of it")
        self._sum.update(data)
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    @property
    def digest(self) -> str:
        return self._sum.hexdigest()


class Artifacts:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def incoming(self, most: int) -> Incoming:
        return Incoming(self._directory, most)

    def open(self, digest: str) -> int:
        """A descriptor of its content. NotFound."""
        if not _DIGEST.fullmatch(digest):
            raise NotFound(f"no artifact {digest!r}")
        try:
            return os.open(self._directory / digest, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise NotFound(f"the content {digest} is gone from {self._directory}") from None

    def keep_only(self, digests: Collection[str]) -> None:
        """Removes what nobody has any more."""
        with suppress(FileNotFoundError):
            for name in os.listdir(self._directory):
                if _DIGEST.fullmatch(name) and name not in digests:
                    (self._directory / name).unlink(missing_ok=True)
