"""Work on trees whose files belong to subordinate ids, and what becomes of it when somebody is killed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TypeVar

import pytest

from paddock.errors import NotConfiguredError
from paddock.linux import subordinate_ids
from paddock.linux.subordinate_ids import SubordinateIds
from paddock.storage import open_pool, prepare
from paddock.storage.pool.worker import Worker
from paddock.supervisor.layout import ORDINARY_ID, POOL, SUPERVISOR_CONFIG
from tests.conftest import configure

T = TypeVar("T")


@pytest.fixture
def worker(ids: SubordinateIds) -> Generator[Worker]:
    worker = Worker(0, ids)
    yield worker
    worker.close()


def _make(directory: int) -> int:
    for owner in (0, ORDINARY_ID - 1, ORDINARY_ID, ORDINARY_ID + 1, 65535):
        os.close(os.open(str(owner), os.O_CREAT | os.O_WRONLY, dir_fd=directory))
        os.chown(str(owner), owner, owner, dir_fd=directory)
    return os.stat("0", dir_fd=directory).st_uid


def test_what_is_made_belongs_to_whom_it_is_given(worker: Worker, ids: SubordinateIds, whole: Path) -> None:
    assert on(worker, whole, _make) == 0
    found = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in whole.glob("[0-9]*")}
    expected = {str(n): (ids.uid + n, ids.gid + n) for n in (0, 999)}
    expected |= {str(n): (ids.uid + n - 1, ids.gid + n - 1) for n in (1001, 65535)}
    assert found == {**expected, "1000": (os.getuid(), os.getgid())}


def on(worker: Worker, path: Path, work: Callable[..., T], *arguments: object) -> T:
    """Have `work` done on a directory."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return worker.do(work, (directory,), *arguments)
    finally:
        os.close(directory)


def test_a_tree_of_a_killed_program_is_swept(ids: SubordinateIds, whole: Path) -> None:
    config = prepare(whole, driver="copy", whole=True)
    pool = open_pool(whole, config)
    pool.create("sb_one")
    on(pool.worker, whole / POOL / "sb_one/root", _own)
    os.rename(whole / POOL / "sb_one", whole / POOL / ".gone-0123456789abcdef")
    assert pool.unfinished() == (".gone-0123456789abcdef",)
    pool.sweep()
    assert pool.unfinished() == ()
    pool.close()


def _own(root: int) -> None:
    os.mkdir("his", 0, dir_fd=root)
    os.chown("his", 33, 33, dir_fd=root)


def test_a_copy_that_is_ours_is_readable_here_whoever_owned_it(ids: SubordinateIds, whole: Path) -> None:
    config = prepare(whole, driver="copy", whole=True)
    pool = open_pool(whole, config)
    pool.create("sb_one")
    on(pool.worker, whole / POOL / "sb_one/root", _secret)
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


def _secret(root: int) -> None:
    os.mkdir("his", dir_fd=root)
    fd = os.open("his/secret", os.O_CREAT | os.O_WRONLY, dir_fd=root)
    os.write(fd, b"x" * 4096)
    os.close(fd)
    for path in ("his/secret", "his"):
        os.chown(path, 33, 33, dir_fd=root)
        os.chmod(path, 0o700, dir_fd=root)


def test_a_range_that_is_taken_away_is_named(ids: SubordinateIds, whole: Path) -> None:
    config = prepare(whole, driver="copy", whole=True)
    pool = open_pool(whole, config)
    pool.create("sb_one")
    pool.close()
    path = whole / SUPERVISOR_CONFIG
    path.write_text(path.read_text().replace(f"[{ids.uid},{ids.gid}]", "[7,7]"))
    other = open_pool(whole, prepare(whole))
    with pytest.raises(NotConfiguredError, match="newuidmap"):
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
    configure(whole, subordinate_ids=True)
    with pytest.raises(NotConfiguredError, match="gives you no range") as caught:
        prepare(whole)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("usermod --add-subuids")
    assert not (whole / SUPERVISOR_CONFIG).exists()
    configure(whole)
    assert prepare(whole).subordinate_ids is None


def test_the_first_range_that_is_large_enough_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "subuid"
    file.write_text("other:1:65536\nme:100:1000\n#me:5:65536\nme:x:65536\nme:200000:65536\nme:400000:65536\n")
    first = subordinate_ids._first  # pyright: ignore[reportPrivateUsage]
    assert first(str(file), {"me", "1234"}) == 200000
    assert first(str(file), {"1234"}) is None
    assert first(str(tmp_path / "none"), {"me"}) is None


def test_unshare_shows_a_person_the_same_files(ids: SubordinateIds, whole: Path, worker: Worker) -> None:
    """The command in the documentation removes what only root of a sandbox may."""
    on(worker, whole, _directory_of)
    command = ["unshare", "--map-auto", "--map-root-user", "rm", "-r", str(whole / "dir")]
    done = subprocess.run(command, capture_output=True, text=True)
    if "unrecognized option" in done.stderr:
        pytest.skip("unshare is older than 2.38")
    assert (done.returncode, done.stderr) == (0, "")


def _directory_of(root: int) -> None:
    os.mkdir("dir", dir_fd=root)
    os.mkdir("dir/inner", dir_fd=root)
    for path in ("dir/inner", "dir"):
        os.chmod(path, 0o700, dir_fd=root)
        os.chown(path, 33, 33, dir_fd=root)
