"""Room: a pool grows and gives back, refuses in time, and what is wrong with it is named."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import msgspec
import pytest

from paddock.errors import NotConfiguredError, PlatformError, ResourceExhaustedError
from paddock.linux import btrfs, loop
from paddock.model import Check
from paddock.storage import Pool, PoolConfig, open_pool, prepare
from paddock.storage.pool.config import store
from tests.conformance.pool import PoolConformance
from tests.conformance.trees import Root
from tests.orphans import wait_until
from tests.storage.drivers import GIB, DriverHarness, Supervisor

MIB = 1 << 20


def checks_of(pool: Pool, *, scrub: bool | None = None) -> dict[str, Check]:
    return {check.name: check for check in pool.examine(scrub=scrub)}


def write(path: Path, size: int) -> int | None:
    """Random bytes, to the disk; the errno if they do not get there."""
    try:
        with path.open("ab", buffering=0) as file:
            for _ in range(size // MIB):
                file.write(os.urandom(MIB))
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno
    return None


def commit(pool: Pool, path: Path) -> int | None:
    """Changes what the file system has to write about itself, and has it written."""
    try:
        path.write_bytes(os.urandom(100))
        pool.trim()
    except OSError as error:
        return error.errno
    return None


def take(path: Path, size: int | None = None) -> None:
    """Room without a word in it: so much, or all that there is."""
    with path.open("ab", buffering=0) as file:
        for piece in (256 * MIB, 16 * MIB, MIB, 64 << 10, 4096):
            with contextlib.suppress(OSError):
                while size is None or file.seek(0, os.SEEK_END) + piece <= size:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), piece)
        os.fsync(file.fileno())


@contextlib.contextmanager
def disk(place: Path, kind: str, size: int) -> Iterator[Path]:
    """A file system of its own at `place`/disk, for who may mount one."""
    place.mkdir()
    directory = place / "disk"
    directory.mkdir()
    if kind == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", str(directory)]
    elif kind == "overlay":
        for name in ("lower", "upper", "work"):
            (place / name).mkdir()
        layers = ",".join(f"{name}dir={place / name}" for name in ("lower", "upper", "work"))
        command = ["mount", "-t", "overlay", "-o", layers, "none", str(directory)]
    else:
        image = place / "image"
        with image.open("wb") as file:
            file.truncate(size)
        try:
            subprocess.run([f"mkfs.{kind}", "-q", str(image)], check=True, capture_output=True)
        except FileNotFoundError:
            pytest.skip(f"mkfs.{kind} is not installed")
        command = ["mount", "-o", "loop", str(image), str(directory)]
    subprocess.run(command, check=True, capture_output=True)
    try:
        yield directory
    finally:
        # A loop device over an image on it goes with its last user: it may be that somebody just looks at all devices.
        assert wait_until(lambda: subprocess.run(["umount", str(directory)], check=False).returncode == 0)


@pytest.fixture
def harness(tmp_path: Path) -> Generator[DriverHarness]:
    try:
        harness = DriverHarness(tmp_path / "state", "btrfs")
    except NotConfiguredError as error:
        pytest.skip(str(error))
    if harness.config.image is None:
        pytest.skip("the state directory is on btrfs itself")
    yield harness
    harness.close()


@pytest.fixture
def image(harness: DriverHarness) -> Path:
    return harness.state_dir / "pool.btrfs"


def taken(image: Path) -> int:
    return image.stat().st_blocks * 512


@pytest.mark.root
def test_an_image_that_is_nearly_full_grows_while_it_is_in_use(harness: DriverHarness, image: Path) -> None:
    pool = harness.open()
    pool.create("sb_1")
    assert pool.fit() == 0
    with Root(pool, "sb_1") as root:
        take(root / "file", 800 * MIB)
        gained = pool.fit()
        assert gained >= 256 * MIB
        assert image.stat().st_size == GIB + gained
        take(root / "file", 1200 * MIB)
        assert (root / "file").stat().st_size == 1200 * MIB
    pool.close()


@pytest.mark.root
def test_a_create_that_finds_the_image_full_lets_it_grow(harness: DriverHarness, image: Path) -> None:
    pool = harness.open()
    pool.create("sb_1")
    with Root(pool, "sb_1") as root:
        take(root / "file")
        assert write(root / "more", 32 * MIB) == errno.ENOSPC
        pool.create("sb_2")
        assert image.stat().st_size > GIB
        assert write(root / "more", 32 * MIB) is None
    pool.close()


@pytest.mark.root
def test_what_is_allocated_and_not_written_is_not_available(harness: DriverHarness, image: Path) -> None:
    pool = harness.open()
    pool.create("sb_1")
    before = pool.space()
    with Root(pool, "sb_1") as root:
        take(root / "file", 512 * MIB)
        after = pool.space()
    assert taken(image) < 64 * MIB
    assert before.available_bytes - after.available_bytes > 480 * MIB
    pool.close()


@pytest.mark.root
def test_data_that_fills_a_new_image_leaves_the_metadata_room(harness: DriverHarness, image: Path) -> None:
    pool = harness.open()
    metadata = Path(f"/sys/fs/btrfs/{btrfs.filesystem_id(pool.fileno())}/allocation/metadata/total_bytes")
    assert int(metadata.read_text()) >= 64 * MIB
    pool.close()


@pytest.mark.root
def test_what_is_deleted_is_given_back_to_the_disk(harness: DriverHarness, image: Path) -> None:
    pool = harness.open()
    pool.create("sb_1")
    before = taken(image)
    with Root(pool, "sb_1") as root:
        assert write(root / "file", 64 * MIB) is None
    assert taken(image) > before + 60 * MIB
    pool.delete("sb_1")

    def given_back() -> bool:
        pool.trim()  # the kernel's cleaner takes a tree apart by and by
        return taken(image) < before + 8 * MIB

    assert wait_until(given_back, seconds=60)
    pool.close()


@pytest.mark.root
def test_killed_while_it_grew_it_goes_on_from_there(harness: DriverHarness, image: Path) -> None:
    pool = harness.open()
    pool.create("sb_1")
    with Root(pool, "sb_1") as root:
        take(root / "file", 800 * MIB)
    os.truncate(image, GIB + GIB // 2)  # as far as it had come
    keep_free(harness, os.statvfs(harness.state_dir).f_bavail * 4096 // MIB + GIB)  # and there is no more to be had
    pool.close()
    pool = harness.open()
    assert pool.fit() == GIB // 2
    pool.close()


def keep_free(harness: DriverHarness, mib: int) -> None:
    harness.config = msgspec.structs.replace(harness.config, keep_free_mib=mib)
    store(harness.state_dir, harness.config)


@pytest.mark.root
def test_a_full_pool_refuses_with_the_next_step_loses_nothing_and_has_room_again(harness: DriverHarness) -> None:
    pool = harness.open()
    pool._image.grow = lambda: 0  # type: ignore[attr-defined]  # as where the disk has no more
    pool.create("sb_1")
    pool.create("sb_2")
    with Root(pool, "sb_1") as root:
        (root / "kept").write_bytes(b"kept" * 1000)
    with Root(pool, "sb_2") as root:
        take(root / "ballast")
        assert write(root / "more", 16 * MIB) == errno.ENOSPC
        for call in (lambda: pool.create("sb_3"), lambda: pool.snapshot("sb_1", "sn_1")):
            with pytest.raises(ResourceExhaustedError, match="paddock gc"):
                call()
    assert pool.names() == ("sb_1", "sb_2")
    pool.delete("sb_2")

    def room() -> bool:
        pool.trim()
        return pool._image._inside()[1] > 500 * MIB  # type: ignore[attr-defined]

    assert wait_until(room, seconds=60)
    pool.snapshot("sb_1", "sn_1")
    with Root(pool, "sn_1") as root:
        assert (root / "kept").read_bytes() == b"kept" * 1000
    pool.close()


@pytest.mark.root
def test_a_disk_that_is_nearly_full_is_no_place_for_another_tree(tmp_path: Path) -> None:
    """Below an image: were it to fill up, the file system in the image would be lost."""
    with disk(tmp_path / "place", "tmpfs", 3 * GIB) as place:
        harness = DriverHarness(place / "state", "btrfs")
        try:
            pool = harness.open()
            pool.create("sb_1")
            with Root(pool, "sb_1") as root:
                assert write(root / "file", 64 * MIB) is None
                ballast = place / "ballast"
                take(ballast, 2900 * MIB)
                with pytest.raises(ResourceExhaustedError, match="kept free"):
                    pool.create("sb_2")
                with pytest.raises(ResourceExhaustedError, match="kept free"):
                    pool.snapshot("sb_1", "sb_2")
                assert checks_of(pool)["image"].status == "weak"
                assert pool.space().fill > 0.9
                assert write(root / "more", 16 * MIB) is None, "what is kept free is for those that live"
                ballast.unlink()
                pool.snapshot("sb_1", "sb_2")
                assert checks_of(pool, scrub=True)["checksums"].status == "ok"
            pool.close()
        finally:
            harness.close()


@pytest.mark.root
def test_what_was_synced_is_there_after_the_disk_was_full_and_that_it_was_is_named(tmp_path: Path) -> None:
    with disk(tmp_path / "place", "tmpfs", 2 * GIB) as place:
        prepare(place / "state", driver="btrfs", image_bytes=2 * GIB)
        harness = DriverHarness(place / "state", "btrfs")
        try:
            pool = harness.open()
            pool.create("sb_1")
            with Root(pool, "sb_1") as root:
                (root / "kept").write_bytes(b"kept")
                pool.trim()  # syncs
                assert write(root / "synced", 8 * MIB) is None
                ballast = place / "ballast"
                take(ballast)
                assert write(root / "lost", 64 * MIB) is not None, "who writes is told"
                assert wait_until(lambda: commit(pool, root / "small") in (errno.EIO, errno.EROFS))
                found = checks_of(pool)["writable"]
                assert (found.status, "no writes" in found.detail) == ("missing", True)
                assert found.fix
                ballast.unlink()
                with pytest.raises(PlatformError, match="paddock doctor --storage"):
                    pool.create("sb_2")
            pool.close()
        finally:
            harness.close()
        harness = DriverHarness(place / "state", "btrfs")  # as after the next start of a supervisor
        try:
            pool = harness.open()
            with Root(pool, "sb_1") as root:
                assert (root / "kept").read_bytes() == b"kept"
                assert (root / "synced").stat().st_size == 8 * MIB
                assert checks_of(pool, scrub=True)["checksums"].status == "ok"
            pool.create("sb_2")
            pool.close()
        finally:
            harness.close()


@pytest.mark.root
@pytest.mark.parametrize("what", ["data", "metadata"])
def test_a_damaged_image_is_named(harness: DriverHarness, image: Path, what: str) -> None:
    pool = harness.open()
    for number in range(20):
        pool.create(f"sb_{number}")
    with Root(pool, "sb_1") as root:
        (root / "name-of-a-file").write_bytes(b"precious" * (1 << 17))
    pool.trim()  # syncs
    assert checks_of(pool, scrub=True)["checksums"].status == "ok"
    pool.close()
    harness.close()
    damage(image, b"precious" * 512 if what == "data" else b"name-of-a-file")
    harness = DriverHarness(harness.state_dir, "btrfs")
    try:
        pool = harness.open()
        found = checks_of(pool)["checksums"]
        assert (found.status, str(image) in found.detail) == ("missing", True)
        assert ("checksum" if what == "data" else "errors") in found.detail
        assert found.fix
        assert checks_of(pool, scrub=False)["checksums"].status == "ok", "nobody has looked"
        pool.close()
    finally:
        harness.close()


def damage(image: Path, pattern: bytes) -> None:
    """Overwrites a byte wherever `pattern` is: in a file, or in the tree that knows its name."""
    with image.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        place = content.find(pattern)
        assert place != -1
        while place != -1:
            content[place] ^= 0xFF
            place = content.find(pattern, place)


@pytest.mark.root
def test_two_devices_over_one_image_are_named(harness: DriverHarness, image: Path) -> None:
    pool = harness.open()
    assert checks_of(pool)["loop device"].status == "ok"
    fd = os.open(image, os.O_RDWR)
    second = loop.attach(fd)
    try:
        found = checks_of(pool)["loop device"]
        assert (found.status, second.path.decode() in found.detail) == ("missing", True)
    finally:
        os.close(second.fd)
        os.close(fd)
    pool.close()


@pytest.mark.root
def test_a_device_over_a_pool_that_was_deleted_is_named(harness: DriverHarness, tmp_path: Path) -> None:
    pool = harness.open()
    lost = tmp_path / "pool.btrfs"
    with lost.open("wb") as file:
        file.truncate(MIB)
        device = loop.attach(file.fileno())
    fix = f"losetup -d {device.path.decode()}"

    def named() -> list[str]:
        """Another test may just have deleted a pool, too."""
        return [check.status for check in pool.examine() if (check.name, check.fix) == ("leftover", fix)]

    try:
        assert named() == []
        lost.unlink()
        assert named() == ["weak"]
    finally:
        os.close(device.fd)
    pool.close()


@pytest.mark.root
@pytest.mark.parametrize(
    ("kind", "driver", "taken"),
    [
        ("tmpfs", None, "btrfs"),
        ("tmpfs", "overlay", "overlay"),
        ("ext4", None, "btrfs"),
        ("ext4", "overlay", "overlay"),
        ("xfs", "overlay", "overlay"),
        ("btrfs", None, "btrfs"),
        ("overlay", None, "btrfs"),
        ("overlay", "overlay", None),
        ("overlay", "copy", "copy"),
    ],
)
def test_on_every_file_system_a_driver_is_taken_that_works(
    tmp_path: Path, kind: str, driver: str | None, taken: str | None
) -> None:
    with disk(tmp_path / "place", kind, 3 * GIB) as place:
        if taken is None:
            with pytest.raises(NotConfiguredError, match="overlay"):
                prepare(place / "state", driver=driver)
            return
        try:
            config = prepare(place / "state", driver=driver, image_bytes=GIB)
        except NotConfiguredError as error:
            pytest.skip(str(error))
        if driver is None and config.driver != taken:
            pytest.skip(f"no image can be made here: {config.reasons}")
        assert config.driver == taken
        supervisor = Supervisor(place / "state")
        try:
            pool = open_pool(place / "state", config, os.dup(supervisor.fd))
            pool.create("sb_1")
            with Root(pool, "sb_1") as root:
                (root / "file").write_text("kept")
            pool.snapshot("sb_1", "sn_1")
            with Root(pool, "sn_1") as root:
                assert (root / "file").read_text() == "kept"
            assert all(check.status != "missing" for check in pool.examine())
            pool.close()
        finally:
            supervisor.close()


def conformance_on(kind: str, driver: str) -> Callable[..., Generator[DriverHarness]]:
    @pytest.fixture
    def harness(self: object, tmp_path: Path) -> Generator[DriverHarness]:
        with disk(tmp_path / "place", kind, 2 * GIB) as place:
            try:
                made = DriverHarness(place / "state", driver)
            except NotConfiguredError as error:
                pytest.skip(str(error))
            try:
                yield made
            finally:
                made.close()

    return harness


@pytest.mark.root
class TestBtrfsOnBtrfs(PoolConformance):
    """Of the machine's own: no image, and quotas as whoever made it wanted them."""

    harness = conformance_on("btrfs", "btrfs")  # type: ignore[assignment]


# tests/storage/test_drivers.py proves each driver once in `make test`.
@pytest.mark.slow
@pytest.mark.root
class TestOverlayOnTmpfs(PoolConformance):
    harness = conformance_on("tmpfs", "overlay")  # type: ignore[assignment]


@pytest.mark.slow
@pytest.mark.root
class TestOverlayOnExt4(PoolConformance):
    harness = conformance_on("ext4", "overlay")  # type: ignore[assignment]


@pytest.mark.slow
@pytest.mark.root
class TestCopyOnAnOverlay(PoolConformance):
    harness = conformance_on("overlay", "copy")  # type: ignore[assignment]


def test_trees_beside_other_files_are_refused_before_the_disk_is_full(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    free = os.statvfs(tmp_path)
    kept = free.f_bavail * free.f_frsize // MIB + 1024
    pool = open_pool(tmp_path, PoolConfig(driver="copy", keep_free_mib=kept))
    with pytest.raises(ResourceExhaustedError, match=r"kept free.*paddock gc"):
        pool.create("sb_1")
    assert pool.space().available_bytes == 0
    assert checks_of(pool)["room"].status == "weak"
    pool.close()
    pool = open_pool(tmp_path, PoolConfig(driver="copy"))
    pool.create("sb_1")
    with Root(pool, "sb_1") as root:
        (root / "file").write_bytes(os.urandom(MIB))
        os.link(root / "file", root / "again")
        deep = root
        for _ in range(120):
            deep = deep / "d"
            deep.mkdir()
    assert MIB <= pool.measure("sb_1") < 2 * MIB
    pool.delete("sb_1")
    pool.close()
