"""What a tree knows of the host's directories below its mounts: since when, and what was taken over into them.

It lies beside the layers, where no sandbox sees it.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

from paddock.storage._obstacles import Seen
from paddock.storage._trees import BASIS, NOTE, names_in
from paddock.storage._whole import write_whole

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PROMOTED = "promoted"


def since_ns(tree: int) -> int | None:
    """When its mounts were laid over the host's directories, by the clock of files; None: it does not say."""
    try:
        return os.stat(BASIS, dir_fd=tree, follow_symlinks=False).st_mtime_ns
    except FileNotFoundError:
        return None


def load_promoted(tree: int, number: int) -> Seen:
    """What earlier promotions from mount `number` have left on the host."""
    try:
        fd = os.open(f"{_PROMOTED}{number}", _READ, dir_fd=tree)
    except FileNotFoundError:
        return {}
    with os.fdopen(fd, "rb") as file:
        entries: dict[str, tuple[int, int, int]] = json.load(file)
    return {os.fsencode(path): (one, two, three) for path, (one, two, three) in entries.items()}


def keep_promoted(tree: int, number: int, promoted: Seen) -> None:
    """OSError: the sandbox has filled its disk."""
    known = {os.fsdecode(path): identity for path, identity in promoted.items()}
    write_whole(tree, f"{_PROMOTED}{number}", json.dumps(known).encode())


def copy_basis(source: int, target: int) -> None:
    """What lies beside the layers, between trees, where the driver copies these alone."""
    with suppress(FileNotFoundError):
        os.unlink(BASIS, dir_fd=target)  # it would say that they were laid there now
    for name in names_in(source):
        if name in (BASIS, NOTE) or name.startswith(_PROMOTED):
            _copy(name, source, target)


def _copy(name: str, source: int, target: int) -> None:
    with os.fdopen(os.open(name, _READ, dir_fd=source), "rb") as old:
        info = os.fstat(old.fileno())
        with os.fdopen(os.open(name, _NEW, 0o600, dir_fd=target), "wb") as new:
            os.fchmod(new.fileno(), info.st_mode & 0o777)
            new.write(old.read())
            new.flush()
            os.utime(new.fileno(), ns=(info.st_atime_ns, info.st_mtime_ns))
