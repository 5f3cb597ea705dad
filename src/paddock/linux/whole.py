"""Atomic writes of whole files."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from paddock.linux.descriptors import closing

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_whole(directory: int, name: str, content: bytes, *, mode: int = 0o600, sync: bool = False) -> None:
    """Make `content` that of file `name`. One caller at a time. `sync`: through a power loss too."""
    above, last = os.path.split(name)
    staged = os.path.join(above, f".{last}.new")
    with suppress(FileNotFoundError):  # a killed writer's
        os.unlink(staged, dir_fd=directory)
    fd = os.open(staged, _NEW, mode, dir_fd=directory)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(fd)
        os.rename(staged, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        os.unlink(staged, dir_fd=directory)
        raise
    if sync:
        os.fsync(directory)


def keep_file(path: Path, content: bytes) -> None:
    """Write a file by path as `write_whole` does, with `sync`."""
    with closing(_open(path.parent)) as directory:
        write_whole(directory, path.name, content, sync=True)


def sync_directory(path: Path) -> None:
    """Make renames in `path` last."""
    with closing(_open(path)) as directory:
        os.fsync(directory)


def _open(directory: Path) -> int:
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
