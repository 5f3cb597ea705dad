"""Does the same at random in two directories, and compares them: `random_files.py SEED STEPS ONE OTHER`."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_NAMES = [f"n{number}" for number in range(12)]
_LARGEST = 300_000


class Twins:
    def __init__(self, seed: int, places: tuple[Path, Path]) -> None:
        self._random = random.Random(seed)
        self._places = places
        self._open: list[tuple[int, int]] = []

    def step(self) -> None:
        choice = self._random.choice
        action = choice(
            [self._write, self._make, self._move, self._attributes, self._open_one, self._use_open, self._list]
        )
        action()

    def _name(self) -> str:
        return "/".join(self._random.choice(_NAMES) for _ in range(self._random.choice([1, 1, 2, 3])))

    def _both(self, what: str, action: Callable[[Path], Any]) -> list[Any]:
        outcomes: list[Any] = []
        for place in self._places:
            try:
                outcomes.append(("ok", action(place)))
            except OSError as error:
                outcomes.append(("error", errno.errorcode[error.errno or 0]))
        plain = [(kind, None if isinstance(value, int) and what == "open" else value) for kind, value in outcomes]
        assert plain[0] == plain[1], f"{what}: {plain[0]} here, {plain[1]} there"
        return outcomes

    def _write(self) -> None:
        name, data = self._name(), self._random.randbytes(self._random.choice([0, 1, 100, 5000, 150_000]))
        offset, append = self._random.randrange(_LARGEST), self._random.random() < 0.3

        def action(place: Path) -> int:
            flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | (os.O_APPEND if append else 0)
            fd = os.open(place / name, flags, 0o640)
            try:
                if not append:
                    os.lseek(fd, offset, os.SEEK_SET)
                return os.write(fd, data)
            finally:
                os.close(fd)

        self._both("write", action)

    def _make(self) -> None:
        name, other, kind = self._name(), self._name(), self._random.randrange(6)
        actions: list[Callable[[Path], Any]] = [
            lambda place: (place / name).mkdir(),
            lambda place: os.symlink(other, place / name),
            lambda place: os.link(place / other, place / name, follow_symlinks=False),
            lambda place: os.unlink(place / name),
            lambda place: os.rmdir(place / name),
            lambda place: os.mkfifo(place / name),
        ]
        self._both(f"make {kind}", actions[kind])

    def _move(self) -> None:
        name, other = self._name(), self._name()
        self._both("rename", lambda place: os.rename(place / name, place / other))

    def _attributes(self) -> None:
        name, kind = self._name(), self._random.randrange(4)
        number = self._random.randrange(_LARGEST)
        actions: list[Callable[[Path], Any]] = [
            lambda place: os.chmod(place / name, 0o700 | number & 0o077),
            lambda place: os.truncate(place / name, number) if (place / name).is_file() else None,
            lambda place: os.utime(place / name, (number, number)),
            lambda place: (
                os.setxattr(place / name, "user.x", str(number).encode()) if (place / name).is_file() else None
            ),
        ]
        self._both(f"attributes {kind}", actions[kind])

    def _open_one(self) -> None:
        name = self._name()
        if any(stat.S_ISFIFO(os.stat(place / name).st_mode) for place in self._places if (place / name).exists()):
            return
        opened = self._both("open", lambda place: os.open(place / name, os.O_RDWR))
        if opened[0][0] == "ok":
            self._open.append((opened[0][1], opened[1][1]))
        if len(self._open) > 5:
            self._close(0)

    def _close(self, index: int) -> None:
        for fd in self._open.pop(index):
            os.close(fd)

    def _use_open(self) -> None:
        """Also of files that have no name any more."""
        if not self._open:
            return
        index, kind, at = (
            self._random.randrange(len(self._open)),
            self._random.randrange(4),
            self._random.randrange(_LARGEST),
        )
        data = self._random.randbytes(self._random.choice([1, 4096, 40_000]))
        outcomes = [_use(fd, kind, at, data) for fd in self._open[index]]
        assert outcomes[0] == outcomes[1], f"use {kind}"

    def _list(self) -> None:
        name = self._name()
        self._both("list", lambda place: sorted(os.listdir(place / name)))

    def compare(self) -> int:
        views = [_view(place) for place in self._places]
        assert views[0] == views[1], [name for name in views[0] | views[1] if views[0].get(name) != views[1].get(name)]
        while self._open:
            self._close(0)
        return len(views[0])


def _use(fd: int, kind: int, at: int, data: bytes) -> Any:
    if kind == 0:
        return os.pwrite(fd, data, at)
    if kind == 1:
        return os.pread(fd, len(data), at)
    if kind == 2:
        return os.ftruncate(fd, at), os.fstat(fd).st_size
    if os.fstat(fd).st_size == 0:
        return None
    with mmap.mmap(fd, 0) as mapped:
        place = at % len(mapped)
        mapped[place : place + len(data)] = data[: len(mapped) - place]
        mapped.flush()
        return bytes(mapped)


def _view(place: Path) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for directory, directories, files in os.walk(place):
        for name in directories + files:
            path = Path(directory, name)
            status = path.lstat()
            content: Any = None
            if path.is_symlink():
                content = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                content = (path.read_bytes(), status.st_nlink, _xattrs(path))
            seen[str(path.relative_to(place))] = (status.st_mode, status.st_uid, status.st_gid, content)
    return seen


def _xattrs(path: Path) -> dict[str, bytes]:
    with contextlib.suppress(OSError):
        return {name: os.getxattr(path, name) for name in os.listxattr(path) if name.startswith("user.")}
    return {}


if __name__ == "__main__":
    twins = Twins(int(sys.argv[1]), (Path(sys.argv[3]), Path(sys.argv[4])))
    for _ in range(int(sys.argv[2])):
        twins.step()
    print("alike", twins.compare(), flush=True)
