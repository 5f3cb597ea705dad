"""Pins: refs that name the commits of a repository that workspaces need, independent of its branches.

paddock writes them as files in git's own format (gitrepository-layout(5)), so that a workspace doesn't wait for a
process.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from paddock.errors import InvalidArgumentError, InvalidStateError
from paddock.linux import openat2
from paddock.linux.descriptors import closing
from paddock.storage.pool.trees import DIRECTORY, NEW, READ, names_in

from ._remote import is_commit

_PINS = "refs/pins/"


def fetched(what: str) -> str:
    """Return the pin of a ref or an object that paddock fetched by itself."""
    return _PINS + "fetched-" + what.removeprefix("refs/").replace("/", "-")


def owners(repository: Path) -> tuple[str, ...]:
    """Return the ids of the objects that need commits of the repository."""
    try:
        directory = _open(repository)
    except InvalidStateError:
        return ()
    with closing(directory):
        names = names_in(directory)
    return tuple(sorted(name for name in names if not name.startswith((".", "fetched-"))))


def pin(repository: Path, owner: str, commit: str, *, like: str | None = None) -> None:
    """Keep `commit` for `owner`, an id, in place of its earlier one.

    `like` is an owner with a pin of the same commit. A second name for a file on the disk needs no sync.
    """
    if not is_commit(commit):
        raise InvalidArgumentError(f"{commit!r} is not the id of a commit")
    with closing(_open(repository)) as directory:
        if like is not None and _linked(directory, _name(like), _name(owner), commit):
            return
        scratch = f".{owner}.{os.urandom(4).hex()}"  # git passes over names that begin so
        with closing(os.open(scratch, NEW, 0o644, dir_fd=directory)) as fd:
            os.write(fd, f"{commit}\n".encode())
            os.fsync(fd)
        os.rename(scratch, _name(owner), src_dir_fd=directory, dst_dir_fd=directory)


def unpin(repository: Path, owner: str) -> None:
    """Remove the pin of `owner`, if the repository and the pin are there."""
    try:
        directory = _open(repository)
    except InvalidStateError:
        return
    with closing(directory), suppress(FileNotFoundError):
        os.unlink(_name(owner), dir_fd=directory)


def _linked(directory: int, pin: str, name: str, commit: str) -> bool:
    """Tell whether `name` is another name of `pin` now, and that a pin of `commit`."""
    with suppress(OSError):  # there is none, or no links are to be had here
        os.link(pin, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        with closing(os.open(name, READ, dir_fd=directory)) as fd:
            return os.read(fd, 128) == f"{commit}\n".encode()
    return False


def _name(owner: str) -> str:
    if not owner.replace("_", "").isalnum() or not owner.isascii():
        raise InvalidArgumentError(f"{owner!r} is not an id")
    return owner


def _open(repository: Path) -> int:
    """Open the directory of the pins, through no link: a git that read hostile data has written there."""
    try:
        top = os.open(repository, DIRECTORY)
    except OSError as error:
        raise InvalidStateError(f"the repository {repository.name} is gone: {error}") from None
    with closing(top):
        try:
            _make(top)
            return openat2.open_beneath(top, _PINS.encode(), DIRECTORY)
        except OSError as error:
            raise InvalidStateError(f"the repository {repository.name} is damaged: {error}") from None


def _make(top: int) -> None:
    with closing(openat2.open_beneath(top, b"refs", DIRECTORY)) as refs, suppress(FileExistsError):
        os.mkdir("pins", 0o755, dir_fd=refs)
        info = os.fstat(refs)
        if os.geteuid() == 0:
            os.chown("pins", info.st_uid, info.st_gid, dir_fd=refs, follow_symlinks=False)
