from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paddock.linux import btrfs, loop, mounts, namespaces

from .child import run_in_child

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(shutil.which("mkfs.btrfs") is None, reason="needs mkfs.btrfs (btrfs-progs)"),
    pytest.mark.skipif(not os.path.exists("/dev/loop-control"), reason="needs loop devices"),
]

MIB = 1 << 20


@pytest.fixture(scope="module")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    image = tmp_path_factory.mktemp("btrfs") / "blank"
    with open(image, "wb") as file:
        file.truncate(256 * MIB)
    subprocess.run(["mkfs.btrfs", "-q", image], check=True, capture_output=True)
    return image


@pytest.fixture
def on_pool(blank: Path, tmp_path: Path) -> Callable[[Callable[[int, Path], object]], None]:
    """Runs a function, with a descriptor and the path of a fresh pool, in a mount namespace that dies with it."""
    image = tmp_path / "image"
    subprocess.run(["cp", "--sparse=always", blank, image], check=True)
    (tmp_path / "pool").mkdir()

    def run(body: Callable[[int, Path], object]) -> None:
        def child() -> None:
            namespaces.unshare(namespaces.NEWNS)
            mounts.make_all_private()
            file = os.open(image, os.O_RDWR)
            device = loop.attach(file)
            assert loop.find(file) == [device.path]
            mount = mounts.fs_mount("btrfs", [("source", device.path)])
            os.close(device.fd)
            mounts.move_mount(mount, mounts.AT_FDCWD, os.fsencode(tmp_path / "pool"))
            os.close(mount)
            body(os.open(tmp_path / "pool", os.O_RDONLY), tmp_path / "pool")

        run_in_child(child)
        with open(image, "rb") as file:
            wait_until(lambda: loop.find(file.fileno()) == [])

    return run


Pool = Callable[[Callable[[int, Path], object]], None]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def subvolume(pool: int, name: bytes) -> int:
    btrfs.create_subvolume(pool, name)
    return os.open(name, os.O_RDONLY, dir_fd=pool)


def quota(pool: int, number: int) -> btrfs.Quota:
    quotas = btrfs.open_quotas(pool)
    try:
        return btrfs.quota(quotas, number)
    finally:
        os.close(quotas)


def test_a_file_system_is_known_by_its_magic(on_pool: Pool, tmp_path: Path) -> None:
    def body(pool: int, path: Path) -> None:
        assert btrfs.is_btrfs(pool)
        proc = os.open("/proc", os.O_RDONLY)
        assert not btrfs.is_btrfs(proc)
        with pytest.raises(OSError, match="btrfs subvolume create"):
            btrfs.create_subvolume(proc, b"x")

    on_pool(body)


def test_a_snapshot_is_a_copy_at_one_instant(on_pool: Pool) -> None:
    def body(pool: int, path: Path) -> None:
        source = subvolume(pool, b"source")
        (path / "source/file").write_text("before")
        btrfs.snapshot(source, pool, b"copy")
        (path / "source/file").write_text("after")
        assert (path / "copy/file").read_text() == "before"
        copy = os.open(path / "copy", os.O_RDONLY)
        assert btrfs.subvolume_id(copy) != btrfs.subvolume_id(source)
        assert btrfs.is_subvolume(copy)
        (path / "source/directory").mkdir()
        assert not btrfs.is_subvolume(os.open(path / "source/directory", os.O_RDONLY))
        btrfs.set_read_only(copy, True)
        assert btrfs.is_read_only(copy)
        with pytest.raises(OSError, match="Read-only"):
            (path / "copy/file").write_text("x")
        btrfs.set_read_only(copy, False)
        os.close(copy)
        btrfs.destroy_subvolume(pool, b"copy")
        assert not (path / "copy").exists()
        with pytest.raises(FileNotFoundError):
            btrfs.destroy_subvolume(pool, b"copy")

    on_pool(body)


def test_a_byte_limit_stops_writes_and_usage_is_told(on_pool: Pool) -> None:
    def body(pool: int, path: Path) -> None:
        assert btrfs.quota_mode(pool) == "off"
        mode = btrfs.enable_quota(pool)
        assert btrfs.enable_quota(pool) == mode == btrfs.quota_mode(pool)
        number = btrfs.subvolume_id(subvolume(pool, b"limited"))
        assert quota(pool, number).limit_bytes is None
        btrfs.set_byte_limit(pool, number, 4 * MIB)
        assert quota(pool, number).limit_bytes == 4 * MIB
        with pytest.raises(OSError) as caught:
            (path / "limited/big").write_bytes(b"x" * 8 * MIB)
        assert caught.value.errno == errno.EDQUOT
        btrfs.sync(pool)
        assert 3 * MIB < quota(pool, number).used_bytes <= 4 * MIB
        btrfs.set_byte_limit(pool, number, None)
        assert quota(pool, number).limit_bytes is None
        (path / "limited/more").write_bytes(b"x" * MIB)
        with pytest.raises(FileNotFoundError):
            quota(pool, 999)

    on_pool(body)


def test_the_group_of_a_destroyed_subvolume_goes_away(on_pool: Pool) -> None:
    def body(pool: int, path: Path) -> None:
        btrfs.enable_quota(pool)
        fd = subvolume(pool, b"gone")
        number = btrfs.subvolume_id(fd)
        (path / "gone/file").write_bytes(b"x" * MIB)
        os.close(fd)
        assert not btrfs.remove_quota_group(pool, number)
        btrfs.destroy_subvolume(pool, b"gone")

        def removed() -> bool:
            btrfs.sync(pool)
            return btrfs.remove_quota_group(pool, number)

        wait_until(removed)
        with pytest.raises(FileNotFoundError):
            quota(pool, number)

    on_pool(body)


def test_inodes_are_counted_and_the_highest_is_never_below(on_pool: Pool) -> None:
    def body(pool: int, path: Path) -> None:
        fd = subvolume(pool, b"many")
        assert btrfs.highest_inode(fd) == 256
        assert list(btrfs.count_inodes(fd, btrfs.highest_inode(fd))) == [1]
        for number in range(700):
            (path / f"many/{number}").write_bytes(b"x" * (number % 3) * 900)
        (path / "many/0").rename(path / "many/renamed")
        os.link(path / "many/1", path / "many/link")
        assert btrfs.highest_inode(fd) == 256 + 700
        assert list(btrfs.count_inodes(fd, btrfs.highest_inode(fd)))[-1] == 701
        for number in range(350, 700):
            (path / f"many/{number}").unlink()
        assert btrfs.highest_inode(fd) == 256 + 350
        assert list(btrfs.count_inodes(fd, btrfs.highest_inode(fd)))[-1] == 351
        (path / "many/new").touch()  # numbers are not given out again
        assert btrfs.highest_inode(fd) == 256 + 701

    on_pool(body)


def test_a_loop_device_dies_with_its_last_user(tmp_path: Path) -> None:
    with open(tmp_path / "image", "wb+") as file:
        file.truncate(MIB)
        device = loop.attach(file.fileno())
        assert loop.find(file.fileno()) == [device.path]
        os.close(device.fd)
        wait_until(lambda: loop.find(file.fileno()) == [])
