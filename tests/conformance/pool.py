"""Every promise of `paddock.storage.Pool`, as tests that any driver can run.

class TestMine(PoolConformance):
    @pytest.fixture
    def harness(self, tmp_path):
        yield MyHarness(tmp_path)
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import pytest

from paddock.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, ResourceExhaustedError
from paddock.storage import Pool
from paddock.supervisor.layout import TREE_ID_BASE
from tests.conformance.trees import Root, describe, everything_in, exit_code, fill_with_hostility, in_child

MIB = 1 << 20
NO_NAMES = ("", "sb", "sb_", "SB_1", "sb_1/..", "../sb_1", ".sb_1", "sb_1\n", "sb_-", "s_1", "sb_é", "sb_" + "1" * 61)


class PoolHarness(Protocol):
    """A pool on this machine, empty at first."""

    def open(self) -> Pool:
        """One more handle on the same pool, as the next daemon has it. The caller closes it."""
        ...


class PoolConformance:
    """Subclass it and override the fixture `harness`."""

    @pytest.fixture
    def harness(self) -> PoolHarness:
        raise NotImplementedError

    @pytest.fixture
    def pool(self, harness: PoolHarness) -> Generator[Pool]:
        pool = harness.open()
        yield pool
        pool.close()

    def test_a_tree_is_made_with_an_empty_root_for_everybody_to_enter(self, pool: Pool) -> None:
        before = os.umask(0o077)
        try:
            pool.create("sb_1")
        finally:
            os.umask(before)
        owner = TREE_ID_BASE if os.geteuid() == 0 else os.geteuid()
        with Root(pool, "sb_1") as root:
            for path in (root, root / "../work"):
                info = path.stat()
                assert (stat.S_IMODE(info.st_mode), info.st_uid) == (0o755, owner)
                assert list(path.iterdir()) == []

    def test_every_handle_sees_every_change_at_once(self, pool: Pool, harness: PoolHarness) -> None:
        other = harness.open()
        assert pool.names() == other.names() == ()
        pool.create("sb_b")
        other.create("sb_a")
        assert pool.names() == other.names() == ("sb_a", "sb_b")
        pool.delete("sb_a")
        assert pool.names() == other.names() == ("sb_b",)
        other.close()

    @pytest.mark.parametrize("name", NO_NAMES)
    def test_a_name_that_is_none_of_a_tree_is_refused_everywhere(self, pool: Pool, name: str) -> None:
        pool.create("sb_1")
        for call in (
            lambda: pool.create(name),
            lambda: pool.delete(name),
            lambda: pool.open(name),
            lambda: pool.usage(name),
            lambda: pool.snapshot(name, "sb_2"),
            lambda: pool.snapshot("sb_1", name),
            lambda: pool.derive(name, "sb_2"),
            lambda: pool.derive("sb_1", name),
            lambda: pool.rename(name, "sb_2"),
            lambda: pool.rename("sb_1", name),
            lambda: pool.exchange(name, "sb_1"),
            lambda: pool.exchange("sb_1", name),
        ):
            with pytest.raises(InvalidArgumentError):
                call()
        assert pool.names() == ("sb_1",)

    def test_what_is_there_is_never_replaced(self, pool: Pool) -> None:
        pool.create("sb_1")
        pool.create("sb_2")
        with Root(pool, "sb_1") as root:
            (root / "mine").write_text("1")
        with pytest.raises(AlreadyExistsError):
            pool.create("sb_1")
        with pytest.raises(AlreadyExistsError):
            pool.snapshot("sb_2", "sb_1")
        with pytest.raises(AlreadyExistsError):
            pool.derive("sb_2", "sb_1")
        with pytest.raises(AlreadyExistsError):
            pool.rename("sb_2", "sb_1")
        assert pool.names() == ("sb_1", "sb_2")
        with Root(pool, "sb_1") as root:
            assert (root / "mine").read_text() == "1"

    def test_what_is_not_there_is_not_found(self, pool: Pool) -> None:
        for call in (
            lambda: pool.open("sb_1"),
            lambda: pool.usage("sb_1"),
            lambda: pool.snapshot("sb_1", "sb_2"),
            lambda: pool.derive("sb_1", "sb_2"),
            lambda: pool.rename("sb_1", "sb_2"),
            lambda: pool.exchange("sb_1", "sb_2"),
        ):
            with pytest.raises(NotFoundError):
                call()
        assert pool.names() == ()

    def test_deleting_nothing_is_nothing(self, pool: Pool) -> None:
        pool.delete("sb_1")
        pool.create("sb_1")
        pool.delete("sb_1")
        pool.delete("sb_1")

    def test_a_renamed_tree_keeps_its_content(self, pool: Pool) -> None:
        pool.create("sb_1")
        with Root(pool, "sb_1") as root:
            (root / "file").write_text("kept")
        pool.rename("sb_1", "sb_2")
        assert pool.names() == ("sb_2",)
        with Root(pool, "sb_2") as root:
            assert (root / "file").read_text() == "kept"

    def test_what_is_flushed_is_as_it_was(self, pool: Pool) -> None:
        pool.create("sb_1")
        with Root(pool, "sb_1") as root:
            (root / "file").write_bytes(os.urandom(MIB))
            wanted = describe(root)
            pool.flush("sb_1")
            assert describe(root) == wanted
        assert pool.names() == ("sb_1",)
        assert pool.unfinished() == ()
        with pytest.raises(NotFoundError):
            pool.flush("sb_2")

    def test_a_tree_takes_the_place_of_another(self, pool: Pool) -> None:
        for name in ("sb_1", "rb_1"):
            pool.create(name)
            with Root(pool, name) as root:
                (root / "file").write_text(name)
        pool.exchange("rb_1", "sb_1")
        assert pool.names() == ("rb_1", "sb_1")
        for name, other in (("sb_1", "rb_1"), ("rb_1", "sb_1")):
            with Root(pool, name) as root:
                assert (root / "file").read_text() == other
        with pytest.raises(NotFoundError):
            pool.exchange("sb_1", "sb_2")
        assert pool.names() == ("rb_1", "sb_1")

    def test_deleting_follows_nothing_and_leaves_nothing(self, pool: Pool, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "precious").write_text("still here")
        pool.create("sb_1")
        with Root(pool, "sb_1") as root:
            fill_with_hostility(root, outside, depth=2000)
        pool.delete("sb_1")
        assert pool.names() == ()
        assert (outside / "precious").read_text() == "still here"
        assert everything_in(pool) == set()

    def test_a_snapshot_is_the_same_and_its_own(self, pool: Pool, tmp_path: Path) -> None:
        pool.create("sb_1")
        with Root(pool, "sb_1") as root:
            fill_with_hostility(root, tmp_path, depth=300)
            (root / "file").write_bytes(os.urandom(100_000))
            (root / "file").chmod(0o4751)
            os.utime(root / "file", ns=(1, 1_600_000_000_123_456_789))
            os.link(root / "file", root / "closed-link")
            os.setxattr(root / "file", "user.mark", b"x")
            if os.geteuid() == 0:
                os.chown(root / "-rf", TREE_ID_BASE + 1000, TREE_ID_BASE + 1000)
            with suppress(PermissionError):  # on an overlay they are its own
                os.mknod(root / "whiteout", stat.S_IFCHR, os.makedev(0, 0))
            with (root / "sparse").open("wb") as sparse:
                sparse.truncate(1 << 40)
                sparse.seek(1 << 39)
                sparse.write(b"in the middle")
            wanted = describe(root)
            assert len(wanted) > 300
            content = (root / "file").read_bytes()
        pool.snapshot("sb_1", "sn_1")
        with Root(pool, "sn_1") as copy:
            assert describe(copy) == wanted
            assert (copy / "file").read_bytes() == content
            assert os.getxattr(copy / "file", "user.mark") == b"x"
            assert (copy / "file").stat().st_ino == (copy / "closed-link").stat().st_ino
            assert (copy / "sparse").stat().st_blocks < 1000
            (copy / "file").write_text("changed")
            (copy / "new").write_text("new")
        with Root(pool, "sb_1") as root:
            assert describe(root) == wanted
            assert (root / "file").read_bytes() == content

    def test_a_snapshot_has_a_fresh_work_directory(self, pool: Pool) -> None:
        pool.create("sb_1")
        with Root(pool, "sb_1") as root:
            left = root / "../work/work/incompat/volatile"
            left.mkdir(parents=True)
            (root / "../work/work").chmod(0)
        pool.snapshot("sb_1", "sn_1")
        with Root(pool, "sn_1") as copy:
            assert list((copy / "../work").iterdir()) == []

    def test_a_tree_over_layers_shows_them_or_is_laid_over_them(self, pool: Pool) -> None:
        for layer, text in (("tp_lower", "lower"), ("tp_upper", "upper")):
            pool.create(layer)
            with Root(pool, layer) as root:
                (root / "etc").mkdir()
                (root / "etc/both").write_text(text)
                (root / f"etc/{text}").write_text(text)
                if text == "lower":
                    (root / "was-directory").mkdir()
                    (root / "was-directory/file").write_text("")
                else:
                    (root / "was-directory").symlink_to("etc")
        pool.create("sb_1", layers=("tp_upper", "tp_lower"))
        with Root(pool, "sb_1") as root:
            if pool.overlay:
                assert list(root.iterdir()) == []
            else:
                assert (root / "etc/both").read_text() == "upper"
                assert (root / "etc/lower").read_text() == "lower"
                assert (root / "etc/upper").read_text() == "upper"
                assert (root / "was-directory").is_symlink()

    def test_what_is_derived_begins_as_its_source_or_needs_it_below(self, pool: Pool) -> None:
        pool.create("bs_1")
        with Root(pool, "bs_1") as root:
            (root / "d").mkdir()
            (root / "d/file").write_text("kept")
            root.chmod(0o2770)
            if os.geteuid() == 0:
                os.chown(root, TREE_ID_BASE + 1000, TREE_ID_BASE + 1000)
            wanted, info = describe(root), root.stat()
        layers = pool.derive("bs_1", "ws_1", limit_bytes=64 * MIB)
        assert layers in ((), ("bs_1",))
        with Root(pool, "ws_1") as tree:
            seen = tree.stat()
            assert (seen.st_mode, seen.st_uid, seen.st_gid) == (info.st_mode, info.st_uid, info.st_gid)
            if layers:
                assert list(tree.iterdir()) == []
            else:
                assert describe(tree) == wanted
            (tree / "new").write_text("mine")
        with Root(pool, "bs_1") as root:
            assert describe(root) == wanted
        pool.snapshot("ws_1", "ws_2")
        with Root(pool, "ws_2") as copy:
            assert (copy / "new").read_text() == "mine"

    def test_a_byte_limit_holds_or_doctor_says_that_it_does_not(self, pool: Pool) -> None:
        pool.create("sb_1", limit_bytes=4 * MIB)
        usage = pool.usage("sb_1")
        disk = next(check for check in pool.checks() if check.name == "disk")
        if usage is None:
            assert (disk.status, "not enforced" in disk.detail) == ("weak", True)
            return
        assert (disk.status, usage.limit_bytes) == ("ok", 4 * MIB)
        pool.snapshot("sb_1", "sb_2", limit_bytes=4 * MIB)
        for name in ("sb_1", "sb_2"):
            with Root(pool, name) as root:
                assert _errno_of_writing(root / "file", 8 * MIB) == errno.EDQUOT
            used = pool.usage(name)
            assert used is not None
            assert used.used_bytes <= 4 * MIB
        pool.allow("sb_1", 16 * MIB)
        with Root(pool, "sb_1") as root:
            assert _errno_of_writing(root / "file", 8 * MIB) is None

    def test_of_many_that_make_one_name_one_succeeds(self, pool: Pool) -> None:
        def race(_: int) -> None:
            for number in range(20):
                try:
                    pool.create(f"sb_{number}")
                except AlreadyExistsError:
                    continue
                with Root(pool, f"sb_{number}") as root:
                    fd = os.open(root / "won", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                    os.write(fd, b"x")
                    os.close(fd)

        _at_once(race)
        assert len(pool.names()) == 20
        for name in pool.names():
            with Root(pool, name) as root:
                assert (root / "won").read_bytes() == b"x"

    def test_threads_make_copy_delete_and_sweep_at_once_without_a_trace(self, pool: Pool, tmp_path: Path) -> None:
        def work(me: int) -> None:
            for number in range(10):
                own, copy = f"sb_{me}_{number}", f"sn_{me}_{number}"
                pool.create(own)
                with Root(pool, own) as root:
                    fill_with_hostility(root, tmp_path, depth=5)
                pool.snapshot(own, copy)
                pool.sweep()  # nothing of what others make or delete is taken from them
                for other in pool.names():  # also those of others, who delete them too
                    if other.startswith("sn_"):
                        pool.delete(other)
                pool.delete(own)
                pool.delete(copy)

        _at_once(work)
        assert pool.sweep() == {}
        assert everything_in(pool) == set()

    def test_nothing_is_swept_while_somebody_is_at_work(self, pool: Pool) -> None:
        left = ".making-0123456789abcdef"
        pool.create("sb_1")
        with Root(pool, "sb_1") as root:
            (root / f"../../{left}").mkdir()
        with pool.working():
            assert set(pool.sweep()) == {left}
        assert pool.unfinished() == (left,)
        assert pool.sweep() == {}
        assert pool.unfinished() == ()

    @pytest.mark.parametrize("trees", [1, 3, 7])
    def test_a_killed_process_leaves_whole_trees_and_no_rest(
        self, harness: PoolHarness, tmp_path: Path, trees: int
    ) -> None:
        ready, writer = os.pipe()

        def work() -> None:
            mine = harness.open()
            number = 0
            while True:
                number += 1
                mine.create(f"sb_{number}")
                with Root(mine, f"sb_{number}") as root:
                    fill_with_hostility(root, tmp_path, depth=50)
                    (root / "last").write_text("")
                os.write(writer, b".")
                mine.snapshot(f"sb_{number}", f"sn_{number}")
                if number > 1:
                    mine.delete(f"sb_{number - 1}")

        pid = in_child(work)
        os.close(writer)
        seen = 0
        while seen < trees:
            assert os.read(ready, 1), "it died by itself"
            seen += 1
        os.kill(pid, signal.SIGKILL)
        assert exit_code(pid) == -signal.SIGKILL
        os.close(ready)
        pool = harness.open()
        for name in pool.names():
            with Root(pool, name) as root:
                assert (root / "../work").is_dir()
                if name.startswith("sn_"):
                    assert (root / "last").exists()
            pool.delete(name)
        assert everything_in(pool) == set()
        pool.close()

    def test_a_full_disk_is_named(self, pool: Pool) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (_lowest_free(), hard))
        try:
            with pytest.raises(ResourceExhaustedError):
                pool.create("sb_1")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert pool.names() == ()


def _errno_of_writing(path: Path, size: int) -> int | None:
    """Fully to the disk: what is over a limit may be found out only there."""
    try:
        with path.open("wb") as file:
            file.write(os.urandom(size))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno
    return None


def _at_once(work: Callable[[int], None]) -> None:
    with ThreadPoolExecutor() as threads:
        list(threads.map(work, range(3)))


def _lowest_free() -> int:
    fd = os.open("/", os.O_RDONLY)
    os.close(fd)
    return fd
