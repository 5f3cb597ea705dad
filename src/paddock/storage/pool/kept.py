"""Files that have left the pool, each whole or not there: archives of evicted workspaces, and artifacts by their
digest."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from paddock.errors import InvalidStateError, NotFoundError, PaddockError, PlatformError, ResourceExhaustedError
from paddock.linux.descriptors import write_all
from paddock.linux.whole import sync_directory
from paddock.storage.pool.trees import READ

_PART = ".part"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class Incoming:
    """A file under construction, at `part`.

    `digest` and `size` cover the data so far. Beyond `most` bytes it raises `over`, because a sandbox may send data
    without end.
    """

    def __init__(self, part: Path, most: int, over: PaddockError) -> None:
        self._part, self._most, self._over = part, most, over
        self._fd = -1
        self._sum = hashlib.sha256()
        self.size = 0

    @property
    def digest(self) -> str:
        return self._sum.hexdigest()

    def open(self) -> None:
        """Create the file. `close` deletes it unless the caller has kept it."""
        self._part.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = os.open(self._part, _NEW, 0o600)

    def write(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > self._most:
            raise self._over
        self._sum.update(data)
        write_all(self._fd, data)

    def keep(self, name: str) -> None:
        """Give it that name: through a loss of power too, when this returns."""
        os.fsync(self._fd)
        self._part.rename(self._part.with_name(name))
        sync_directory(self._part.parent)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._part.unlink(missing_ok=True)


class KeptArchives:
    """The archives of one state directory, by the id of their workspace. Only paddock's own uid can read them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextmanager
    def writing(self, name: str, most_bytes: int) -> Generator[Incoming]:
        """Write an archive that exists once the block has ended, unless it raises. ResourceExhaustedError: it is
        larger."""
        over = ResourceExhaustedError(f"the archive is larger than {most_bytes >> 20} MiB")
        archive = Incoming(self._directory / f"{name}{_PART}", most_bytes, over)
        try:
            archive.open()
            yield archive
            archive.keep(name)
        finally:
            archive.close()

    def reading(self, name: str, size: int) -> Generator[bytes]:
        """Read the content, in pieces of `size` bytes."""
        with (self._directory / name).open("rb") as file:
            while data := file.read(size):
                yield data

    def check(self, name: str, digest: str) -> None:
        """Compare the archive with its digest. Raises PlatformError if it is missing or differs."""
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
        """Remove the archive, if it is there."""
        for path in (self._directory / name, self._directory / f"{name}{_PART}"):
            path.unlink(missing_ok=True)

    def names(self) -> frozenset[str]:
        """Return the names of all archives, also of half-written ones."""
        with suppress(FileNotFoundError):
            return frozenset(name.removesuffix(_PART) for name in os.listdir(self._directory))
        return frozenset()


_DIGEST = re.compile(r"[0-9a-f]{64}")
_INCOMING = ".incoming-"


class Artifacts:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def incoming(self, most: int) -> Incoming:
        """Create a file that becomes an artifact under its digest. Raises InvalidStateError beyond `most` bytes."""
        over = InvalidStateError(f"an artifact has at most {most >> 20} MiB", hint="take a part of it")
        return Incoming(self._directory / f"{_INCOMING}{os.urandom(8).hex()}", most, over)

    def open(self, digest: str) -> int:
        """Return a descriptor of the content. NotFound."""
        if not _DIGEST.fullmatch(digest):
            raise NotFoundError(f"no artifact {digest!r}")
        try:
            return os.open(self._directory / digest, READ)
        except FileNotFoundError:
            raise NotFoundError(f"the content {digest} is gone from {self._directory}") from None

    def keep_only(self, digests: Collection[str]) -> None:
        """Remove all artifacts but these."""
        with suppress(FileNotFoundError):
            for name in os.listdir(self._directory):
                if _DIGEST.fullmatch(name) and name not in digests:
                    (self._directory / name).unlink(missing_ok=True)
