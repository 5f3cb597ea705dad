"""Work on trees whose files belong to subordinate ids, and what becomes of it when somebody is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from paddock.errors import AlreadyExists, InternalError, NotConfigured
from paddock.keeper.layout import KEEPER_CONFIG, ORDINARY_ID, POOL, SUBORDINATE_IDS
from paddock.linux import pidfd, subordinate_ids
from paddock.linux.subordinate_ids import SubordinateIds
from paddock.storage import open_pool, prepare
from paddock.storage._porter import SubordinatePorter
from tests.orphans import wait_until


@pytest.fixture
def porter(ids: SubordinateIds) -> SubordinatePorter:
    return SubordinatePorter(ids)


def test_what_is_made_belongs_to_whom_it_is_given(porter: SubordinatePorter, ids: SubordinateIds, whole: Path) -> None:
    def make() -> int:
        for owner in (0, ORDINARY_ID - 1, ORDINARY_ID, ORDINARY_ID + 1, 65535):
            (whole / str(owner)).touch()
            os.chown(whole / str(owner), owner, owner)
        return os.stat(whole / "0").st_uid

    assert porter.do(make) == 0
    found = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in whole.iterdir()}
    expected = {str(n): (ids.uid + n, ids.gid + n) for n in (0, 999)}
    expected |= {str(n): (ids.uid + n - 1, ids.gid + n - 1) for n in (1001, 65535)}
    assert found == {**expected, "1000": (os.getuid(), os.getgid())}
    porter.close()


def test_what_goes_wrong_is_raised_here(porter: SubordinatePorter) -> None:
    def fail(error: Exception) -> None:
        raise error

    with pytest.raises(AlreadyExists, match="twice") as caught:
        porter.do(partial(fail, AlreadyExists("twice", hint="once")))
    assert caught.value.hint == "once"
    with pytest.raises(FileNotFoundError):
        porter.do(partial(os.stat, "/nowhere"))
    with pytest.raises(InternalError, match="ValueError: bad"):
        porter.do(partial(fail, ValueError("bad")))
    with pytest.raises(InternalError, match="died"):
        porter.do(lambda: os.kill(os.getpid(), signal.SIGKILL))
    porter.close()


def test_it_holds_no_descriptor_of_the_program_but_those_it_is_given(porter: SubordinatePorter, whole: Path) -> None:
    def held() -> set[str]:
        links = [f"/proc/self/fd/{fd}" for fd in range(3, 1000)]
        return {os.readlink(link) for link in links if os.path.lexists(link)}

    with (whole / "kept").open("w") as kept, (whole / "other").open("w") as other:
        assert not other.closed
        told = porter.do(held, kept.fileno())
    assert str(whole / "kept") in told
    assert str(whole / "other") not in told
    porter.close()


def test_many_threads_have_work_done_at_once(porter: SubordinatePorter) -> None:
    busy = threading.Event()

    def spin() -> None:
        while not busy.is_set():
            sum(range(100))

    def square(n: int) -> int:
        return porter.do(lambda: n * n)

    spinner = threading.Thread(target=spin)
    spinner.start()
    try:
        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(square, range(64))) == [n * n for n in range(64)]
    finally:
        busy.set()
        spinner.join()
        porter.close()


def test_it_dies_with_the_program(porter: SubordinatePorter, whole: Path) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            porter.do(partial(_say_and_stay, whole / "pid"))
        finally:
            os._exit(0)
    assert wait_until(lambda: (whole / "pid").exists())
    worker = pidfd.open(int((whole / "pid").read_text()))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    try:
        assert pidfd.wait(worker, 30)
    finally:
        os.close(worker)


def _say_and_stay(path: Path) -> None:
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)
    signal.pause()


def test_a_tree_of_a_killed_program_is_swept(ids: SubordinateIds, whole: Path) -> None:
    config = prepare(whole, driver="copy", whole=True)
    pool = open_pool(whole, config)
    pool.create("sb_one")
    pool.porter.do(lambda: _own(whole / POOL / "sb_one/root"))
    os.rename(whole / POOL / "sb_one", whole / POOL / ".gone-0123456789abcdef")
    assert pool.unfinished() == (".gone-0123456789abcdef",)
    pool.sweep()
    assert pool.unfinished() == ()
    pool.close()


def _own(root: Path) -> None:
    (root / "his").mkdir(mode=0)
    os.chown(root / "his", 33, 33)


def test_a_copy_that_is_ours_is_readable_here_whoever_owned_it(ids: SubordinateIds, whole: Path) -> None:
    config = prepare(whole, driver="copy", whole=True)
    pool = open_pool(whole, config)
    pool.create("sb_one")
    pool.porter.do(lambda: _secret(whole / POOL / "sb_one/root"))
    with pytest.raises(PermissionError):
        (whole / POOL / "sb_one/root/his/secret").read_text()
    assert pool.measure("sb_one") >= 4096
    pool.snapshot("sb_one", "sb_two", ours=True)
    copied = whole / POOL / "sb_two/root/his"
    assert copied.stat().st_uid == os.getuid()
    copied.chmod(0o700)
    assert (copied / "secret").stat().st_uid == os.getuid()
    for name in ("sb_one", "sb_two"):
        pool.delete(name)
    assert pool.names() == ()
    pool.close()


def _secret(root: Path) -> None:
    (root / "his").mkdir()
    (root / "his/secret").write_text("x" * 4096)
    for path in (root / "his/secret", root / "his"):
        os.chown(path, 33, 33)
        path.chmod(0o700)


def test_a_range_that_is_taken_away_is_named(ids: SubordinateIds, whole: Path) -> None:
    config = prepare(whole, driver="copy", whole=True)
    pool = open_pool(whole, config)
    pool.create("sb_one")
    pool.close()
    path = whole / KEEPER_CONFIG
    path.write_text(path.read_text().replace(f"[{ids.uid},{ids.gid}]", "[7,7]"))
    other = open_pool(whole, prepare(whole))
    with pytest.raises(NotConfigured, match="newuidmap"):
        other.create("sb_two")
    other.close()
    again = open_pool(whole, config)
    again.delete("sb_one")
    again.close()


def test_what_was_asked_for_and_cannot_be_had_is_refused(
    ids: SubordinateIds, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing: Callable[[], str] = lambda: "/etc/subuid gives you no range"  # noqa: E731
    monkeypatch.setattr(subordinate_ids, "granted", nothing)
    monkeypatch.setenv(SUBORDINATE_IDS, "1")
    with pytest.raises(NotConfigured, match="gives you no range") as caught:
        prepare(whole)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("usermod --add-subuids")
    assert not (whole / KEEPER_CONFIG).exists()
    monkeypatch.setenv(SUBORDINATE_IDS, "0")
    assert prepare(whole).subordinate_ids is None


def test_the_first_range_that_is_large_enough_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "subuid"
    file.write_text("other:1:65536\nme:100:1000\n#me:5:65536\nme:x:65536\nme:200000:65536\nme:400000:65536\n")
    first = subordinate_ids._first  # pyright: ignore[reportPrivateUsage]
    assert first(str(file), {"me", "1234"}) == 200000
    assert first(str(file), {"1234"}) is None
    assert first(str(tmp_path / "none"), {"me"}) is None


def test_unshare_shows_a_person_the_same_files(ids: SubordinateIds, whole: Path, porter: SubordinatePorter) -> None:
    """The command in the documentation removes what only root of a sandbox may."""
    porter.do(partial(_directory_of, whole / "dir"))
    porter.close()
    command = ["unshare", "--map-auto", "--map-root-user", "rm", "-r", str(whole / "dir")]
    done = subprocess.run(command, capture_output=True, text=True)
    if "unrecognized option" in done.stderr:
        pytest.skip("unshare is older than 2.38")
    assert (done.returncode, done.stderr) == (0, "")


def _directory_of(path: Path) -> None:
    (path / "inner").mkdir(parents=True)
    for one in (path / "inner", path):
        one.chmod(0o700)
        os.chown(one, 33, 33)
