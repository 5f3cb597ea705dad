"""What is kept by mounts over itself, asked for as another kernel would: `kept_files.py DIRECTORY SAVED`.

In a mount namespace of its own (`unshare -m`, as an ordinary user `unshare -rm`).
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paddock.supervisor._places import protect
from paddock.vmm._fuse_nodes import Export
from paddock.vmm._fuse_server import load_state, save_state
from tests.vmm.fuse_client import Client, Refused, export


def main(directory: Path, saved: Path) -> None:
    (directory / "git" / "hooks").mkdir(parents=True)
    (directory / "git" / "hooks" / "commit").write_text("good")
    (directory / "Makefile").write_text("good")
    os.link(directory / "Makefile", directory / "other")
    os.chdir(directory.parent)
    protect((f"/{directory.name}/git/hooks", f"/{directory.name}/Makefile", f"/{directory.name}/not there"))
    client = Client(_across(directory))
    try:
        _nobody_changes_it(client)
        _all_else_is_as_before(client)
        place = os.open(saved, os.O_RDONLY)
        assert save_state(client.nodes, place) == 0
        copy = Client(_across(directory))
        load_state(copy.nodes, place)
        _a_copy_keeps_it(client, copy)
        copy.close()
        os.close(place)
    finally:
        client.close()
    plain = Client(export(directory))
    _refused(errno.EXDEV, lambda: plain.find(plain.root(), b"git"))
    plain.close()
    assert (directory / "git" / "hooks" / "commit").read_text() == "good"


def _across(directory: Path) -> Export:
    plain = export(directory)
    return Export(plain.name, plain.directory, plain.writable, across=True)


def _nobody_changes_it(client: Client) -> None:
    root = client.root()
    git, hooks = client.find(root, b"git"), client.find(root, b"git", b"hooks")
    commit, makefile = client.find(hooks, b"commit"), client.find(root, b"Makefile")
    for node in (commit, makefile):
        assert client.read(node) == b"good"
        _refused(errno.EROFS, client.write, node, b"bad")
        _refused(errno.EROFS, client.truncate, node, 0)
        _refused(errno.EROFS, client.setattr, node, 1, mode=0o777)
        _refused(errno.EROFS, client.setxattr, node, b"user.x")
        _refused(errno.EXDEV, client.link, git, b"mine", node)
    _refused(errno.EROFS, client.make, hooks, b"new")
    _refused(errno.EROFS, client.mkdir, hooks, b"new")
    _refused(errno.EROFS, client.symlink, hooks, b"new", b"x")
    _refused(errno.EROFS, client.unlink, hooks, b"commit")
    _refused(errno.EXDEV, client.rename, hooks, b"commit", root, b"mine")
    _refused(errno.EBUSY, client.unlink, root, b"Makefile")
    _refused(errno.EBUSY, client.unlink_directory, git, b"hooks")
    client.make(root, b"new")
    for old, parent in ((b"new", b"Makefile"), (b"Makefile", b"old"), (b"git", b"old")):
        for flags in (0, 2):  # to replace, to exchange
            numbers = (errno.EBUSY, errno.ENOENT) if flags and parent == b"old" else (errno.EBUSY,)
            _refused(numbers, client.rename, root, old, root, parent, flags)
    _refused(errno.EBUSY, client.rename, git, b"hooks", git, b"old")


def _all_else_is_as_before(client: Client) -> None:
    root = client.root()
    git = client.find(root, b"git")
    assert client.write(client.make(git, b"index"), b"x") == 1
    client.rename(git, b"index", git, b"second")
    _refused(errno.EXDEV, client.rename, git, b"second", root, b"index")  # as in a jail: mv copies
    assert b"second" in client.names(git)
    # A name that the same file had before leads to the same file, and gives the kept name nothing.
    other, makefile = client.find(root, b"other"), client.find(root, b"Makefile")
    assert other != makefile
    assert client.write(other, b"GOOD") == 4
    assert client.read(makefile) == b"GOOD"
    _refused(errno.EROFS, client.write, makefile, b"bad")


def _a_copy_keeps_it(client: Client, copy: Client) -> None:
    other = copy.find(copy.root(), b"other")  # first: it must not be taken for the one that is kept
    for names in ((b"Makefile",), (b"git", b"hooks", b"commit")):
        known = client.find(client.root(), *names)
        assert stat.S_ISREG(copy.nodes.node(known).kind)
        _refused(errno.EROFS, copy.write, known, b"bad")
    assert copy.write(client.find(client.root(), b"other"), b"good") == 4
    assert other == client.find(client.root(), b"other")


def _refused(numbers: int | tuple[int, ...], ask: Callable[..., object], *arguments: object, **more: object) -> None:
    with pytest.raises(Refused) as caught:
        ask(*arguments, **more)
    assert caught.value.errno in (numbers if isinstance(numbers, tuple) else (numbers,)), caught.value


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
