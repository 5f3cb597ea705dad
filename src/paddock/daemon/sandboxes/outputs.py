"""Hold what commands print. Memory has the beginning and end of each stream, a file all of one that is longer."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import BinaryIO

from paddock.model import Limits, Output

from .instance import RunningSandbox

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class Capture:
    """Capture at most `limit` bytes. If more comes, all of it goes to `spool` as well, from the first byte on."""

    def __init__(self, limit: int, spool: str, running: RunningSandbox) -> None:
        self._running, self._kept = running, 0
        self._head_size = (limit + 1) // 2
        self._tail_size = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._spool = spool
        self._file: BinaryIO | None = None
        self._spooling = True
        self.total = 0

    def add(self, data: bytes) -> None:
        if self.total + len(data) > self._head_size + self._tail_size and self._spooling:
            self._keep(data)
        self.total += len(data)
        room = self._head_size - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail += data[-self._tail_size :] if self._tail_size else b""
        # Trimmed now and then: cutting one buffer at each read would move its bytes at each read.
        if len(self._tail) > 2 * self._tail_size + 65536:
            del self._tail[: len(self._tail) - self._tail_size]

    def ending(self, size: int = 4096) -> bytes:
        """Return the last bytes, for looking into."""
        return bytes(self._tail[-size:] or self._head[-size:])

    def output(self) -> Output:
        """Return the output. Close the file first."""
        return Output(
            head=bytes(self._head),
            tail=bytes(self._tail[-self._tail_size :]) if self._tail_size else b"",
            total_bytes=self.total,
            file=self._spool if self._kept else None,
        )

    def close(self) -> None:
        """Close the file. Without room on disk for the buffered rest, delete it."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError:
                self._discard()
            self._file = None

    def _keep(self, data: bytes) -> None:
        try:
            if self._file is None:
                folder = Path(self._spool).parent
                for place in (folder.parent, folder):
                    place.mkdir(mode=0o700, exist_ok=True)
                self._file = os.fdopen(os.open(self._spool, _NEW, 0o600), "wb")
                data = b"".join((self._head, self._tail, data))  # memory has all of it until now
            self._take(len(data))
            self._file.write(data)
        except OSError:
            # A full disk or quota doesn't fail the command: the result says that the file is missing.
            self.close()
            self._discard()

    def _take(self, size: int) -> None:
        """Count bytes of the file, or give them back. Raises OSError if less is left."""
        left = self._running.outputs_left
        if left is None:
            left = _left(self._running.limits, Path(self._spool).parent)
        if size > left:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        self._running.outputs_left = left - size
        self._kept += size

    def _discard(self) -> None:
        self._spooling = False
        with contextlib.suppress(OSError):
            os.unlink(self._spool)
        if self._kept:
            self._take(-self._kept)


class KeptOutput:
    """Read a kept output, which is a file on the host."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    async def read(self, size: int = 65536) -> bytes:
        return self._file.read(size)

    async def aclose(self) -> None:
        self._file.close()


def _left(limits: Limits, folder: Path) -> int:
    """Return the bytes that outputs may still take: those of an earlier daemon are there already."""
    return (max(limits.disk_mib, limits.output_mib) << 20) - sum(entry.stat().st_size for entry in os.scandir(folder))
