"""Contents that were taken out of sandboxes, by digest. Each is whole or not there."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from paddock.errors import InvalidState, NotFound
from paddock.storage._whole import sync_directory

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
