"""Images of memory: one that is whole never changes, and is there for as long as a tree leans on it."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from paddock.errors import InvalidStateError, NotConfiguredError, NotFoundError
from paddock.storage import Pool
from paddock.storage.pool.memories import PLACE, Memories
from tests.storage.drivers import DriverHarness

BASE, MACHINE, IMAGE = "tp_baked", "sb_1", "mm_1"
CONTENT = bytes(range(256)) * 256


@pytest.fixture(params=["btrfs", "overlay"])
def pool(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Pool]:
    try:
        harness = DriverHarness(tmp_path / "state", request.param)
    except NotConfiguredError as error:
        pytest.skip(str(error))
    pool = harness.open()
    pool.create(BASE)
    pool.create(MACHINE)
    fd = pool.open(BASE)
    try:
        os.mkdir(os.path.dirname(PLACE), dir_fd=fd)
        Path(f"/proc/self/fd/{fd}/{PLACE}").write_bytes(CONTENT)
    finally:
        os.close(fd)
    yield pool
    pool.close()
    harness.close()


def _content(pool: Pool, tree: str) -> bytes:
    fd = pool.open(tree)
    try:
        return Path(f"/proc/self/fd/{fd}/{PLACE}").read_bytes()
    finally:
        os.close(fd)


def test_an_image_is_a_copy_of_its_base_with_what_was_written(pool: Pool) -> None:
    image = Memories(pool).image(IMAGE)
    image.begin(BASE)
    fd = image.open()
    os.pwrite(fd, b"new", 4096)
    os.close(fd)
    image.seal()
    image.let_go()
    assert _content(pool, BASE) == CONTENT
    assert _content(pool, IMAGE) == CONTENT[:4096] + b"new" + CONTENT[4099:]


def test_one_that_somebody_can_still_write_is_not_whole(pool: Pool) -> None:
    image = Memories(pool).image(IMAGE)
    image.begin(BASE)
    fd = image.open()
    with pytest.raises(InvalidStateError, match="is written"):
        image.seal()
    os.close(fd)
    image.seal()
    image.let_go()


def test_a_base_that_is_no_file_is_refused(pool: Pool) -> None:
    fd = pool.open(BASE)
    os.unlink(PLACE, dir_fd=fd)
    os.symlink("/etc/passwd", PLACE, dir_fd=fd)
    os.close(fd)
    image = Memories(pool).image(IMAGE)
    with pytest.raises(Exception, match="cannot make tree"):
        image.begin(BASE)
    image.let_go()
    assert Memories(pool).lost() == (IMAGE,)


def test_what_a_tree_leans_on_its_copies_lean_on_too(pool: Pool) -> None:
    memories = Memories(pool)
    assert memories.leans_on(MACHINE) == ()
    memories.lean(MACHINE, BASE, IMAGE)
    pool.snapshot(MACHINE, "sn_1", at_rest=True)
    pool.snapshot("sn_1", "sb_2")
    memories.lean(MACHINE, BASE)
    assert memories.leans_on("sb_2") == (BASE, IMAGE)
    assert memories.leans_on(MACHINE) == (BASE,)
    with pytest.raises(NotFoundError):
        memories.lean("sb_3", BASE)


def test_an_image_goes_when_the_last_tree_does_that_leans_on_it(pool: Pool) -> None:
    memories = Memories(pool)
    image = memories.image(IMAGE)
    image.begin(BASE)
    assert memories.lost() == ()  # it is being made, and no tree leans on it yet
    memories.lean(MACHINE, BASE, IMAGE)
    image.let_go()
    pool.snapshot(MACHINE, "sb_2")
    assert not memories.drop(IMAGE)
    memories.lean(MACHINE, BASE)
    assert memories.lost() == ()
    pool.delete("sb_2")
    assert memories.lost() == (IMAGE,)
    assert memories.drop(IMAGE)
    assert IMAGE not in pool.names()
    assert BASE in pool.names()
