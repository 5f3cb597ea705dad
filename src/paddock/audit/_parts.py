"""The files of one chain of lines: NAME, which the writer extends, and the closed parts before it.

A closed part is `NAME.BEGIN-END`, or with `.gz` once paddock has packed it. BEGIN and END count the bytes of the chain.
Packing and removal therefore don't change the offsets of the lines.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

SUFFIX = ".jsonl"
PART_BYTES = 16 << 20
"""Size in bytes above which the writer closes a file and continues the chain in another one."""
_PART = re.compile(r"([^/]+)\.(\d{15})-(\d{15})(\.gz)?")
_PACKED = ".gz"
_BEGUN = ".new"
_SPAN_BYTES = 64 << 10


class Part(NamedTuple):
    """Lines of a chain that no one writes to any more. `path` is without the `.gz` of a packed one."""

    name: str
    begin: int
    end: int
    path: Path
    packed: bool

    @property
    def file(self) -> Path:
        return self.path.with_name(self.path.name + _PACKED) if self.packed else self.path

    def open(self) -> BinaryIO:
        """Open the part. Raises FileNotFoundError if retention has removed it."""
        if not self.packed:
            try:
                return self.path.open("rb")
            except FileNotFoundError:  # packed since it was listed
                return self._replace(packed=True).open()
        import gzip  # a log that was never closed has no packed parts

        return cast("BinaryIO", gzip.open(self.file, "rb"))

    def last(self) -> bytes:
        with self.open() as file:
            return deque(file, maxlen=1)[0]


def chains(directory: Path) -> list[str]:
    """Return the names of the segments that have any file."""
    try:
        entries = os.listdir(directory)
    except FileNotFoundError:
        return []
    names = {match[1] if (match := _PART.fullmatch(entry)) else entry for entry in entries}
    return sorted(name for name in names if name.endswith(SUFFIX))


def parts(directory: Path, name: str | None = None) -> list[Part]:
    """Return the closed parts of a chain, or of all, each once, in order."""
    found: dict[tuple[str, int], Part] = {}
    for entry in os.listdir(directory):
        match = _PART.fullmatch(entry)
        if match and name in (None, match[1]):
            path = directory / entry.removesuffix(_PACKED)
            part = Part(match[1], int(match[2]), int(match[3]), path, match[4] is not None)
            # The packed one of two is whole: it has that name only since it is.
            if part.packed or (part.name, part.begin) not in found:
                found[part.name, part.begin] = part
    return [found[key] for key in sorted(found)]


def close_part(directory: Path, name: str, begin: int, size: int, fresh: Path | None) -> None:
    """Rename the chain's file to a closed part, and give its name to `fresh`.

    Only the writer of the chain calls it.

    If paddock dies between the two, the chain has all its lines, and no writer continues it. On OSError nothing has
    changed.
    """
    path = directory / name
    part = path.with_name(f"{name}.{begin:015d}-{begin + size:015d}")
    path.rename(part)
    if fresh is not None:
        try:
            fresh.rename(path)
        except OSError:
            part.rename(path)
            raise


def begun(directory: Path, name: str) -> Path:
    """Return the path at which the writer prepares the next file of a chain."""
    return directory / f"{name}{_BEGUN}"


def lines(directory: Path, name: str, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield each line of a chain from byte `offset` on, and the byte after it.

    It passes over removed parts.

    A torn last line comes too. Raises FileNotFoundError if the chain is missing, and OSError if a packed part has a
    fault.
    """
    closed, current = _opened(directory, name)
    try:
        for part in closed:
            if part.end <= offset:
                continue
            try:
                file = part.open()
            except FileNotFoundError:  # removed since it was listed
                continue
            with file:
                try:
                    yield from _lines(file, part.begin, offset)
                except (OSError, EOFError, zlib.error) as error:
                    raise OSError(errno.EIO, f"it can't be read: {error}", str(part.file)) from error
            offset = part.end
        if current is not None:
            yield from _lines(current, closed[-1].end if closed else 0, offset)
    finally:
        if current is not None:
            current.close()


def _lines(file: BinaryIO, begin: int, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that begins at byte `begin` of its chain, as `lines` does."""
    at = max(offset, begin)
    file.seek(at - begin)
    for raw in file:
        at += len(raw)
        yield at, raw


def size(directory: Path, name: str) -> int:
    """Return how many bytes a chain has had until now. FileNotFoundError."""
    closed, current = _opened(directory, name)
    base = closed[-1].end if closed else 0
    if current is None:
        return base
    with current:
        return base + os.fstat(current.fileno()).st_size


def last(directory: Path, name: str) -> bytes:
    """Return the last whole line of a chain, or b"" if it has none. Raises FileNotFoundError."""
    closed, current = _opened(directory, name)
    line = b""
    if current is not None:
        with current:
            line = last_line(current.fileno())[0]
    if not line and closed:
        line = closed[-1].last()
    return line


def first(directory: Path, name: str) -> bytes:
    """Return the first present line of a chain, or b"" if it has none."""
    return next((raw for _, raw in lines(directory, name)), b"")


def pack(directory: Path) -> None:
    """Pack the closed parts. If paddock dies meanwhile, a part is there once or twice, and counts once."""
    import gzip

    for part in parts(directory):
        if part.packed:
            part.path.unlink(missing_ok=True)
            continue
        at, packed = part.path.stat().st_mtime, part._replace(packed=True).file
        staged = packed.with_name(f"{packed.name}{_BEGUN}")
        fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with part.path.open("rb") as plain, open(fd, "wb") as raw:
            with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as file:
                shutil.copyfileobj(plain, file, 1 << 20)
            raw.flush()
            os.fsync(raw.fileno())
        os.utime(staged, (at, at))
        staged.rename(packed)
        part.path.unlink()


def outdated(directory: Path, most_bytes: float, before: float) -> list[Part]:
    """Return the closed parts that go: those last written before that time, and the oldest until the directory has no
    more than so many bytes. The newest closed part of a chain stays: its name tells where the chain's file begins."""
    aged: list[tuple[float, Part, int]] = []
    previous: tuple[float, Part, int] | None = None
    for part in parts(directory):
        stat = part.file.stat()
        if previous is not None and previous[1].name == part.name:
            aged.append(previous)
            at = max(previous[0], stat.st_mtime)  # in their order, not by the clock
        else:
            at = stat.st_mtime
        previous = at, part, stat.st_size
    with os.scandir(directory) as entries:
        total = sum(entry.stat().st_size for entry in entries)
    found: list[Part] = []
    for at, part, length in sorted(aged):
        if at < before or total > most_bytes:
            found.append(part)
            total -= length
    return found


def _opened(directory: Path, name: str) -> tuple[list[Part], BinaryIO | None]:
    """List the closed parts of a chain, and the file behind them, all of one instant."""
    path = directory / name
    while True:
        try:
            file = path.open("rb")
        except FileNotFoundError:
            closed = parts(directory, name)
            if path.exists():
                continue
            if not closed:
                raise
            return closed, None
        closed = parts(directory, name)
        try:
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return closed, file
        except FileNotFoundError:
            pass  # it was closed meanwhile
        file.close()


def last_line(fd: int) -> tuple[bytes, int]:
    """Return the last whole line, newline included, and where it ends. It ignores a torn line after it."""
    size = os.fstat(fd).st_size
    span = _SPAN_BYTES
    while True:
        begin = max(0, size - span)
        tail = os.pread(fd, size - begin, begin)
        stop = tail.rfind(b"\n") + 1
        start = tail.rfind(b"\n", 0, max(0, stop - 1)) + 1
        if begin == 0 or start:
            return tail[start:stop], begin + stop
        span *= 4
