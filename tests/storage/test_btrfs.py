"""What the btrfs driver does beyond the contract."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections.abc import Generator
from contextlib import nullcontext
from pathlib import Path

import pytest

from paddock.errors import InvalidStateError, NotConfiguredError, PlatformError, ResourceExhaustedError
from paddock.linux import btrfs
from paddock.linux.descriptors import closing
from paddock.model import PoolSpace
from paddock.storage import open_pool
from paddock.storage.pool._btrfs import BtrfsPool
from tests.conformance.trees import Root, everything_in, exit_code, in_child
from tests.storage.drivers import GIB, Supervisor, prepare

pytestmark = pytest.mark.root

_QUOTA_CTL = 0xC010_9428
_DISABLE, _ENABLE_FULL = 2, 1
_SET_FLAGS, _IMMUTABLE = 0x4008_6602, 0x10  # include/uapi/linux/fs.h


@pytest.fixture
def supervisor(tmp_path: Path) -> Generator[Supervisor]:
    try:
        config = prepare(tmp_path, driver="btrfs", image_bytes=GIB)
    except NotConfiguredError as error:
        pytest.skip(str(error))
    if config.image is None:
        pytest.skip("the state directory is on btrfs itself")
    supervisor = Supervisor(tmp_path)
    yield supervisor
    supervisor.close()


def opened(tmp_path: Path, supervisor: Supervisor) -> BtrfsPool:
    pool = open_pool(tmp_path, prepare(tmp_path), os.dup(supervisor.fd))
    assert isinstance(pool, BtrfsPool)
    return pool


@pytest.mark.parametrize("available", [1 << 30, 1 << 20], ids=["there is room", "it is full"])
@pytest.mark.parametrize("step", ["the copy", "its content"])
def test_what_was_deleted_and_not_given_back_yet_is_waited_for(
    tmp_path: Path, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, available: int, step: str
) -> None:
    """The kernel's cleaner goes on after a commit: until then a copy is refused although there is room."""
    pool = opened(tmp_path, supervisor)
    pool.create("sb_1")
    with closing(pool.open("sb_1")) as tree:
        os.makedirs(f"/proc/self/fd/{tree}/work/work/incompat")
    module, name = (btrfs, "snapshot") if step == "the copy" else (os, "rmdir")
    allowed, sync, commits = getattr(module, name), btrfs.sync, [0]

    def refuse(*arguments: object, **named: object) -> None:
        if not commits[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        allowed(*arguments, **named)

    def commit(fd: int) -> None:
        commits[0] += 1
        sync(fd)

    def space(self: BtrfsPool) -> PoolSpace:
        return PoolSpace(used_bytes=1 << 29, available_bytes=available)

    monkeypatch.setattr(module, name, refuse)
    monkeypatch.setattr(btrfs, "sync", commit)
    monkeypatch.setattr(BtrfsPool, "space", space)
    with nullcontext() if available > 1 << 26 else pytest.raises(ResourceExhaustedError):
        pool.snapshot("sb_1", "sb_2")
    assert ("sb_2" in pool.names()) == bool(commits[0]) == (available > 1 << 26)
    assert pool.unfinished() == ()


def nest(root: Path) -> None:
    """Three subvolumes one in the other, each in a directory, read-only, and with a file."""
    flagged: list[int] = []
    place = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(3):
        os.mkdir("beside", dir_fd=place)
        beside = os.open("beside", os.O_RDONLY | os.O_DIRECTORY, dir_fd=place)
        btrfs.create_subvolume(beside, b"nested")
        os.close(place)
        place = os.open("nested", os.O_RDONLY | os.O_DIRECTORY, dir_fd=beside)
        os.close(beside)
        os.mkdir("within", dir_fd=place)
        os.close(os.open("within/file", os.O_CREAT | os.O_WRONLY, dir_fd=place))
        os.fchmod(place, 0o500)
        flagged.append(os.dup(place))
    os.close(place)
    for subvolume in flagged:
        btrfs.set_read_only(subvolume, True)
        os.close(subvolume)


def test_a_tree_with_read_only_subvolumes_in_it_is_deleted_whole(tmp_path: Path, supervisor: Supervisor) -> None:
    pool = opened(tmp_path, supervisor)
    pool.create("sb_1")
    with Root(pool, "sb_1") as root:
        nest(root)
    pool.delete("sb_1")
    assert everything_in(pool) == set()
    pool.close()


def test_a_tree_with_subvolumes_in_it_is_not_copied_in_part(tmp_path: Path, supervisor: Supervisor) -> None:
    pool = opened(tmp_path, supervisor)
    for name, number in (("sb_1", 1), ("sb_2", 300)):  # more than the kernel tells at once
        pool.create(name)
        with Root(pool, name) as root:
            directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
            for nested in range(number):
                btrfs.create_subvolume(directory, b"%d" % nested)
            os.close(directory)
        for copy in (pool.snapshot, pool.derive):
            with pytest.raises(InvalidStateError, match="subvolumes"):
                copy(name, "sb_3")
        assert pool.names() == tuple(sorted({"sb_1", name}))
        with Root(pool, name) as root:
            for nested in range(number):
                (root / str(nested)).rmdir()
        pool.snapshot(name, "sb_3")
        pool.delete("sb_3")
    pool.close()


def test_a_sweep_says_why_something_half_deleted_stays(tmp_path: Path, supervisor: Supervisor) -> None:
    pool = opened(tmp_path, supervisor)
    pool.create("sb_1")
    with Root(pool, "sb_1") as root:
        directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        btrfs.create_subvolume(directory, b"nested")
        os.close(directory)
        file = os.open(root / "nested/file", os.O_RDONLY | os.O_CREAT)
        fcntl.ioctl(file, _SET_FLAGS, struct.pack("=l", _IMMUTABLE))
        with pytest.raises(PlatformError, match="file"):
            pool.delete("sb_1")
        ((name, why),) = pool.sweep().items()
        assert name == pool.unfinished()[0]
        assert "Operation not permitted" in why
        fcntl.ioctl(file, _SET_FLAGS, bytes(4))
        os.close(file)
    assert pool.sweep() == {}
    assert everything_in(pool) == set()
    pool.close()


def test_quota_groups_that_killed_processes_left_are_removed_and_no_others(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    for command in (_DISABLE, _ENABLE_FULL):  # full quotas leave a group behind for each subvolume
        fcntl.ioctl(supervisor.fd, _QUOTA_CTL, bytearray(struct.pack("QQ", command, 0)))

    def leave() -> None:
        mine = opened(tmp_path, supervisor)
        for number in range(150):
            mine.create(f"sb_{number}", limit_bytes=1 << 20)
        for number in range(10, 150):
            mine.delete(f"sb_{number}")

    assert exit_code(in_child(leave)) == 0
    groups = f"/sys/fs/btrfs/{btrfs.filesystem_id(supervisor.fd)}/qgroups"
    deadline = time.monotonic() + 60
    while len([name for name in os.listdir(groups) if name.startswith("0_")]) > 100:
        assert time.monotonic() < deadline, "the groups are still there"
        btrfs.sync(supervisor.fd)  # the kernel's cleaner goes on after each commit
        opened(tmp_path, supervisor).close()
    pool = opened(tmp_path, supervisor)
    usages = [pool.usage(f"sb_{number}") for number in range(10)]
    assert [usage and usage.limit_bytes for usage in usages] == [1 << 20] * 10
    pool.close()
