"""What `acquire` promises: the commit that the remote had, seen recently enough, and all of it here."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paddock.errors import InvalidArgumentError, InvalidStateError, NotFoundError, PlatformError
from paddock.storage.git import Credential
from tests.repositories.git_servers import ENVIRONMENT, HttpServer, Origin, address
from tests.repositories.shelf import ALICE, BOB, Shelf

from paddock.storage.git import pins  # isort: skip


def git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", f"--git-dir={repository}", *arguments], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    return (done.stdout + done.stderr).strip()


async def test_a_name_leads_to_what_the_remote_has_and_the_time_of_the_look_is_said(
    shelf: Shelf, origin: Origin, daemon: Any
) -> None:
    url = address(daemon, "app")
    origin.git("tag", "-a", "v1", "-m", "annotated")
    first = await shelf.acquire(url)
    assert (first.commit, first.ref, first.branch) == (origin.head(), "refs/heads/main", "main")
    tagged = await shelf.acquire(url, "v1", max_age=60)
    assert (tagged.commit, tagged.branch) == (origin.head(), None)
    second = origin.commit({"README": "two\n"})
    old = await shelf.acquire(url, "main", max_age=60)
    assert (old.commit, old.observed_at) == (first.commit, first.observed_at)
    new = await shelf.acquire(url, "main")
    assert new.commit == second
    assert new.observed_at > first.observed_at
    assert new.repository == first.repository
    assert git(shelf.path(new), "cat-file", "-t", second) == "commit"


async def test_what_was_seen_long_ago_is_looked_at_again(shelf: Shelf, origin: Origin, daemon: Any) -> None:
    url = address(daemon, "app")
    await shelf.acquire(url, max_age=60)
    before = daemon.connections
    await shelf.acquire(url, max_age=60)
    assert daemon.connections == before
    shelf.now += 61
    await shelf.acquire(url, max_age=60)
    assert daemon.connections == before + 1  # it looked; there was nothing to fetch


async def test_what_was_seen_before_the_machine_started_again_is_looked_at_again(
    shelf: Shelf, origin: Origin, daemon: Any
) -> None:
    """CLOCK_BOOTTIME begins anew: what it said then means nothing now."""
    url = address(daemon, "app")
    await shelf.acquire(url, max_age=60)
    before = daemon.connections
    shelf.repositories._boot = "another"  # pyright: ignore[reportPrivateUsage]
    await shelf.acquire(url, max_age=60)
    assert daemon.connections > before


async def test_a_branch_made_since_the_last_look_is_found(shelf: Shelf, origin: Origin, daemon: Any) -> None:
    url = address(daemon, "app")
    await shelf.acquire(url, max_age=60)
    origin.git("checkout", "-q", "-b", "fix/deep")
    made = origin.commit({"fix": "1"})
    assert (await shelf.acquire(url, "fix/deep", max_age=60)).commit == made


async def test_branches_that_are_forced_deleted_or_become_directories(
    shelf: Shelf, origin: Origin, daemon: Any
) -> None:
    url = address(daemon, "app")
    origin.git("branch", "a")
    before = await shelf.acquire(url, "a")
    origin.git("branch", "-D", "a")
    origin.git("branch", "a/b")
    origin.git("commit", "-q", "--amend", "-m", "another history")
    assert (await shelf.acquire(url, "main")).commit == origin.head() != before.commit
    assert (await shelf.acquire(url, "a/b")).commit == before.commit
    with pytest.raises(NotFoundError, match="no branch and no tag 'a'; its branches: a/b, main"):
        await shelf.acquire(url, "a")


async def test_the_default_branch_is_the_remotes_at_that_time(shelf: Shelf, origin: Origin, daemon: Any) -> None:
    url = address(daemon, "app")
    assert (await shelf.acquire(url)).branch == "main"
    origin.git("checkout", "-q", "-b", "trunk")
    assert (await shelf.acquire(url)).branch == "trunk"


async def test_a_commit_by_its_id_also_one_that_no_branch_has(shelf: Shelf, origin: Origin, daemon: Any) -> None:
    url = address(daemon, "app")
    gone = origin.commit({"README": "gone\n"})
    origin.git("reset", "-q", "--hard", "HEAD~")
    found = await shelf.acquire(url, gone)
    assert (found.commit, found.ref) == (gone, None)
    assert gone in git(shelf.path(found), "for-each-ref", "refs/pins")
    with pytest.raises(NotFoundError):
        await shelf.acquire(url, "0" * 39 + "1")


async def test_a_ref_that_is_neither_branch_nor_tag(shelf: Shelf, origin: Origin, daemon: Any) -> None:
    url = address(daemon, "app")
    origin.git("update-ref", "refs/pull/1/head", origin.commit({"pull": "1"}))
    pulled = origin.head()
    origin.git("reset", "-q", "--hard", "HEAD~")
    assert (await shelf.acquire(url, "refs/pull/1/head")).commit == pulled


async def test_many_at_once_on_a_cold_and_on_a_warm_cache(shelf: Shelf, origin: Origin, daemon: Any) -> None:
    url = address(daemon, "app")
    cold = await asyncio.gather(*(shelf.acquire(url) for _ in range(24)))
    assert {one.commit for one in cold} == {origin.head()}
    assert len({one.repository for one in cold}) == 1
    assert daemon.connections <= 4  # a look and a fetch for the first, and a look for those who asked after it began
    origin.commit({"README": "two\n"})
    warm = await asyncio.gather(*(shelf.acquire(url) for _ in range(24)))
    assert {one.commit for one in warm} == {origin.head()}


async def test_a_fetch_that_was_killed_leaves_no_lock_for_the_next(shelf: Shelf, origin: Origin, daemon: Any) -> None:
    url = address(daemon, "app")
    first = await shelf.acquire(url)
    left = [shelf.path(first) / "refs/heads/main.lock", shelf.path(first) / "packed-refs.lock"]
    for lock in left:
        lock.touch()
        os.chown(lock, shelf.path(first).stat().st_uid, shelf.path(first).stat().st_gid)
    (shelf.directory / f"{first.repository}.busy").touch()
    origin.commit({"README": "two\n"})
    assert (await shelf.acquire(url)).commit == origin.head()
    assert [lock for lock in left if lock.exists()] == []


async def test_who_is_cancelled_or_late_leaves_no_process(tmp_path: Path, shelf: Shelf, origins: Path) -> None:
    """A server that says nothing: the git that waits for it is killed with all that it has started."""
    with socket.create_server(("127.0.0.1", 0)) as server:  # which accepts nobody
        url = f"http://127.0.0.1:{server.getsockname()[1]}/app"
        asking = asyncio.ensure_future(shelf.acquire(url))
        await until(lambda: _gits(url))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert _gits(url) == []


async def until(condition: Callable[[], Any]) -> None:
    """Polls what the kernel brings about."""
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition never came true")


def _gits(url: str) -> list[int]:
    """Those that look there. Other tests have theirs, at the same time on this machine."""
    found: list[int] = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if url.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                found.append(int(name))
        except OSError:
            continue
    return found


async def test_a_private_repository_belongs_to_who_can_prove_it(shelf: Shelf, origin: Origin, http: HttpServer) -> None:
    http.protect("app", "alice", "s3cret")
    url = address(http, "app/.git", "http")
    with pytest.raises(NotFoundError, match=f"not for {ALICE.name}"):
        await shelf.acquire(url)
    shelf.credentials[ALICE.id] = Credential("alice", "s3cret")
    mine = await shelf.acquire(url)
    assert mine.commit == origin.head()
    asked = len(http.asked)
    with pytest.raises(NotFoundError, match=f"not for {BOB.name}"):  # whatever age: it was never his
        await shelf.acquire(url, max_age=3600, by=BOB)
    with pytest.raises(NotFoundError):  # nor by an id that he may have heard of
        await shelf.acquire(url, mine.commit, max_age=3600, by=BOB)
    assert len(http.asked) > asked
    shelf.credentials[BOB.id] = Credential("alice", "s3cret")
    his = await shelf.acquire(url, by=BOB)
    assert his.repository != mine.repository
    assert [one.scope for one in shelf.store.list(BOB.id)] == [BOB.id]


async def test_an_access_that_was_taken_away_ends_with_the_age_of_the_last_proof(
    shelf: Shelf, origin: Origin, http: HttpServer
) -> None:
    http.protect("app", "alice", "s3cret")
    shelf.credentials[ALICE.id] = Credential("alice", "s3cret")
    url = address(http, "app/.git", "http")
    await shelf.acquire(url)
    http.protect("app", "alice", "changed")
    await shelf.acquire(url, max_age=60)
    with pytest.raises(NotFoundError):
        await shelf.acquire(url)


async def test_a_credential_in_a_url_is_used_and_kept_nowhere(
    tmp_path: Path, shelf: Shelf, origin: Origin, http: HttpServer
) -> None:
    http.protect("app", "alice", "s3cret-4711")
    url = address(http, "app/.git", "http")
    got = await shelf.acquire(url.replace("://", "://alice:s3cret-4711@"))
    assert got.url == url
    assert any(value for _, value in http.asked)
    http.protect("app", "alice", "another")
    with pytest.raises(NotFoundError) as caught:
        await shelf.acquire(url.replace("://", "://alice:s3cret-4711@"))
    assert "4711" not in str(caught.value)
    shelf.close()
    for path in (tmp_path / "state").rglob("*"):
        if path.is_file():
            assert b"s3cret-4711" not in path.read_bytes(), path


async def test_a_credential_goes_to_its_own_host_only(shelf: Shelf, origin: Origin, http: HttpServer) -> None:
    """A server that sends whoever comes on to another one, which asks for a password."""
    from tests.repositories.git_servers import http_backend

    http.protect("app", "alice", "s3cret")
    shelf.credentials[ALICE.id] = Credential("alice", "s3cret")
    with http_backend(http.root) as thief:
        thief.protect("app", "x", "y")
        http.passwords.clear()
        http.redirect = address(thief, "", "http").rstrip("/")
        with pytest.raises(InvalidStateError, match="sends on"):
            await shelf.acquire(address(http, "app/.git", "http"))
        assert thief.asked == []


async def test_no_credential_is_sent_in_the_clear(shelf: Shelf) -> None:
    shelf.credentials[ALICE.id] = Credential("alice", "s3cret")
    with pytest.raises(InvalidArgumentError, match="in the clear"):
        await shelf.acquire("http://alice:s3cret@192.0.2.1/app")


@pytest.mark.parametrize("shape", ["sha256", "shallow", "names"])
async def test_repositories_of_all_shapes(shelf: Shelf, origins: Path, daemon: Any, shape: str) -> None:
    made = Origin(origins / "odd", object_format="sha256" if shape == "sha256" else "sha1")
    if shape == "names":
        os.symlink("/etc/passwd", made.path / "link")
        os.mkfifo(made.path / "fifo")
        made.commit({"\udcff\udcfe.txt": "not UTF-8"})
        made.commit({"big.bin": "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"})
        made.commit({".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n"})
        made.git("update-ref", "refs/heads/\udcff", "HEAD")
    else:
        for number in range(5):
            made.commit({"file": str(number)})
    if shape == "shallow":
        Origin.git(made, "clone", "--quiet", "--bare", "--depth=2", made.url, str(origins / "cut"))
        got = await shelf.acquire(address(daemon, "cut"))
        assert git(shelf.path(got), "rev-list", "--count", got.commit) == "2"
    else:
        got = await shelf.acquire(address(daemon, "odd"))
    assert got.commit == made.head()
    assert git(shelf.path(got), "fsck", "--connectivity-only") in ("", "notice: HEAD points to an unborn branch")


async def test_a_remote_that_lacks_what_it_lists_is_said_and_nothing_is_recorded(
    shelf: Shelf, origin: Origin, daemon: Any
) -> None:
    """As a partial clone does whose own remote is away."""
    blob = origin.head("HEAD:README")
    (origin.path / ".git/objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises((PlatformError, InvalidArgumentError)):
        await shelf.acquire(address(daemon, "app"))
    with pytest.raises((PlatformError, InvalidArgumentError)):
        await shelf.acquire(address(daemon, "app"), max_age=3600)


async def test_an_empty_one_says_so_until_there_is_a_commit(shelf: Shelf, origins: Path, daemon: Any) -> None:
    made = Origin(origins / "new")
    with pytest.raises(InvalidStateError, match="has no branches yet"):
        await shelf.acquire(address(daemon, "new"))
    made.commit({"a": "1"})
    assert (await shelf.acquire(address(daemon, "new"))).commit == made.head()


async def test_nothing_there_and_nobody_there(shelf: Shelf, origin: Origin, daemon: Any) -> None:
    with pytest.raises(NotFoundError):
        await shelf.acquire(address(daemon, "none"))
    with pytest.raises(PlatformError, match="cannot be reached"):
        await shelf.acquire("git://127.0.0.1:1/app")


async def test_what_is_pinned_is_not_deleted_and_outlives_the_branch(shelf: Shelf, origin: Origin, daemon: Any) -> None:
    url = address(daemon, "app")
    first = await shelf.acquire(url)
    pins.pin(shelf.path(first), "ws_1", first.commit)
    origin.git("commit", "-q", "--amend", "-m", "another history")
    await shelf.acquire(url)
    assert git(shelf.path(first), "rev-parse", "refs/pins/ws_1") == first.commit
    git(shelf.path(first), "gc", "--prune=now", "--quiet")
    assert git(shelf.path(first), "cat-file", "-t", first.commit) == "commit"
    with pytest.raises(InvalidStateError, match="needed by ws_1"):
        await shelf.delete(url)
    pins.unpin(shelf.path(first), "ws_1")
    await shelf.delete(url)
    assert list(shelf.directory.glob(f"{first.repository}*")) == []
    assert shelf.store.list(ALICE.id) == ()
