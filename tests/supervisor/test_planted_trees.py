"""A tree that an attacker wrote before it is mounted again: the moment of most published escapes from containers.

A place to mount on is a link: CVE-2021-30465, CVE-2025-31133, CVE-2025-52565, CVE-2025-52881.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paddock.errors import PaddockError
from paddock.supervisor.layout import TREE_ID_BASE
from tests.supervisor.conftest import Yard, run

PLACES = ("dev", "proc", "tmp", "usr", "usr/local", "workspace", "home", "etc", "run", "sys", "var", "root")


PLANTED = {
    "link to a directory of the host": "{sentinel}",
    "link upwards": "../../../../../../../../../../..{sentinel}",
    "link through proc": "/proc/1/root{sentinel}",
    "link to itself": "{name}",
    "link to a descriptor": "/proc/self/fd/3",
    "dangling link": "/nothing",
    "file": "",
    "fifo": "",
}


@pytest.fixture
def sentinel(tmp_path: Path) -> Path:
    directory = tmp_path / "sentinel"
    directory.mkdir(mode=0o777)
    (directory / "secret").write_text("the host's")
    tmp_path.chmod(0o755)
    for above in tmp_path.parents[:3]:
        if stat.S_ISDIR(above.stat().st_mode) and above.stat().st_uid == os.getuid() and str(above) != "/tmp":
            above.chmod(above.stat().st_mode | 0o011)
    return directory


@pytest.mark.parametrize("kind", PLANTED)
def test_what_was_planted_in_a_tree_misleads_no_mount(kind: str, play: Any, sentinel: Path) -> None:
    """It starts as it should, or not at all; the host's directory is the same, and is not seen."""

    async def scene(yard: Yard) -> list[str]:
        commands: list[str] = []
        for place in PLACES:
            plan = yard.plan()
            _plant(yard, plan.tree, place, kind, sentinel)
            try:
                instance = await yard.backend.create(plan)
            except PaddockError:
                continue
            try:
                for user in (None, *(["root"] if os.getuid() == 0 else [])):
                    script = f"cat /{place}/secret /{place}/*/secret; echo evil >/{place}/evil"
                    with contextlib.suppress(PaddockError):  # where its working directory is what was planted
                        _, seen = await run(instance, "sh", "-c", script, user=user)
                        assert b"the host's" not in seen
                        commands.append(place)
            finally:
                await instance.kill()
        return commands

    assert play(scene), "not one of them could be looked at"
    assert os.listdir(sentinel) == ["secret"]
    assert (sentinel / "secret").read_text() == "the host's"


def test_a_tree_as_it_should_be_starts(play: Any) -> None:
    async def scene(yard: Yard) -> bytes:
        instance = await yard.create()
        try:
            return (await run(instance, "echo", "started"))[1]
        finally:
            await instance.kill()

    assert play(scene) == b"started\n"


def _plant(yard: Yard, tree: str, place: str, kind: str, sentinel: Path) -> None:
    """Puts it where the upper layer has its `place`, as root inside could have done."""
    with _tree(yard, tree) as here:
        *parents, name = place.split("/")
        path = "/".join(parents)
        if path:
            os.mkdir(path, 0o755, dir_fd=here)
            _give(here, path)
        if kind == "file":
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o666, dir_fd=here))
        elif kind == "fifo":
            os.mkfifo(place, 0o666, dir_fd=here)
        else:
            os.symlink(PLANTED[kind].format(sentinel=sentinel, name=name), place, dir_fd=here)
        _give(here, place)


@contextlib.contextmanager
def _tree(yard: Yard, name: str) -> Iterator[int]:
    tree = yard.pool.open(name)
    try:
        root = os.open("root", os.O_RDONLY | os.O_DIRECTORY, dir_fd=tree)
    finally:
        os.close(tree)
    try:
        yield root
    finally:
        os.close(root)


def _give(directory: int, path: str) -> None:
    if os.getuid() == 0:
        os.chown(path, TREE_ID_BASE, TREE_ID_BASE, dir_fd=directory, follow_symlinks=False)
