"""Bases and workshops, with real sandboxes: what is checked out, by whom, and what is left of a workshop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from paddock.backends.base import TreeMount
from paddock.daemon.main._compose import Node
from paddock.daemon.main.service import Service
from paddock.daemon.store.trees import WorkspaceTree
from paddock.daemon.workspaces import _bases
from paddock.daemon.workspaces._bases import Base
from paddock.daemon.workspaces._checkout import Submodule, acquire_submodule
from paddock.errors import ErrandFailedError, InvalidArgumentError, InvalidStateError
from paddock.model import (
    Acquired,
    AcquireRepository,
    CollectGarbage,
    CreateSandbox,
    DeleteRepository,
    KillSandbox,
    ListRepositories,
    ListSandboxes,
    OpenWorkspace,
    Principal,
    Workspace,
)
from tests.conftest import configure
from tests.repositories.git_servers import HttpServer, Origin, address

ME = Principal(f"local:{os.getuid()}")


class Asked:
    """What stands in for the entry of the action that needs a base."""

    number, principal = 1, ME


class Rig:
    def __init__(self, service: Service) -> None:
        self.service = service
        self.shelf: Any = service.repositories
        self.pool: Any = self.shelf.bases._pool()

    async def acquire(self, origin: Origin, ref: str | None = None) -> Acquired:
        return await self.service.perform(AcquireRepository(url=origin.url, ref=ref), ME)

    async def base(self, acquired: Acquired, branch: str = "work", *, submodules: bool = False) -> Base:
        return await self.shelf.bases.get(acquired, branch, Asked(), submodules=submodules)

    @asynccontextmanager
    async def over(self, base: Base, name: str = "zz_work", **options: float) -> AsyncGenerator[Any]:
        """A workshop in a tree that was derived from a base, as a workspace is."""
        layers = self.pool.derive(base.id, name)
        try:
            trees = (
                TreeMount(tree=name, target="/workspace", writable=True, layers=layers),
                TreeMount(tree=base.repository, target="/run/paddock/repository", writable=False),
            )
            async with self.shelf.utilities.open(trees, Asked(), **options) as workshop:
                yield workshop
        finally:
            self.pool.delete(name)


@asynccontextmanager
async def opened(state_dir: Path) -> AsyncGenerator[Rig]:
    async with AsyncExitStack() as stack:
        node = Node(state_dir)
        stack.push_async_callback(node.aclose)
        await node.open()
        yield Rig(node.service)


def audited(state_dir: Path) -> set[str]:
    """The lines of the audit log, each of which has a number of its own."""
    return {line for path in (state_dir / "audit").glob("*.jsonl") for line in path.read_text().splitlines()}


async def says(workshop: Any, line: str) -> str:
    said = await workshop.run(f"cd /workspace; {line}", env={})
    return said.decode(errors="surrogateescape").strip()


async def test_a_base_is_the_commit_on_its_branch_with_a_git_of_its_own(module_state: Path, origin: Origin) -> None:
    origin.commit({"\udcff.txt": "x", "A": "1", "a": "2", "dir/deep/file": "y", "run.sh": "#!/bin/sh\n"})
    (origin.path / "run.sh").chmod(0o755)
    (origin.path / "link").symlink_to("/etc/passwd")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"
    origin.commit({"big.bin": pointer, ".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n"})
    origin.git("branch", "other")
    async with opened(module_state) as rig:
        base = await rig.base(await rig.acquire(origin), "fix/it")
        assert (base.commit, base.branch) == (origin.head(), "fix/it")
        async with rig.over(base) as shop:
            assert await says(shop, "git status --porcelain --branch") == "## fix/it"
            assert await says(shop, "git rev-parse HEAD") == origin.head()
            assert "remotes/origin/other" in await says(shop, "git branch -a")
            assert await says(shop, "git log --oneline | wc -l") == "3"
            assert await says(shop, "cat big.bin") == pointer.strip()
            assert await says(shop, "readlink link; test -x run.sh && cat A a") == "/etc/passwd\n12"
            assert await says(shop, "cat .git/objects/info/alternates") == "/run/paddock/repository/objects"
            assert await says(shop, "find .git/objects -type f | grep -v info | wc -l") == "0"
            assert "denied" in await says(shop, "touch /run/paddock/repository/x 2>&1 || echo denied")
            # what is committed here stays here
            await says(shop, "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m mine")
        async with rig.over(base) as shop:
            assert await says(shop, "git rev-parse HEAD") == origin.head()


async def test_status_in_a_workspace_reads_no_file_again(module_state: Path, origin: Origin) -> None:
    """A file that was changed behind git's back, with the size and the time that it had, passes for unchanged."""
    async with opened(module_state) as rig:
        base = await rig.base(await rig.acquire(origin))
        async with rig.over(base) as shop:
            deceive = "touch -r README /tmp/when; printf 'two\\n' > README; touch -r /tmp/when README; git status -s"
            assert await says(shop, deceive) == ""
            assert await says(shop, "echo three >> README; git status -s") == "M README"


async def test_one_makes_a_base_and_the_others_wait(module_state: Path, origin: Origin) -> None:
    async with opened(module_state) as rig:
        before = rig.pool.names()
        acquired = await rig.acquire(origin)
        asked = [rig.base(acquired) for _ in range(12)]
        assert len({base.id for base in await asyncio.gather(*asked)}) == 1
        made = set(rig.pool.names()).difference(before)
        assert [name for name in made if name.startswith("bs_")] == [(await rig.base(acquired)).id]
        assert (await rig.base(acquired, "another")).id != (await rig.base(acquired)).id


async def test_a_base_that_a_dead_daemon_was_making_is_deleted(module_state: Path, origin: Origin) -> None:
    async with opened(module_state) as rig:
        acquired = await rig.acquire(origin)
        dead = Base("bs_dead", acquired.repository, acquired.commit, "work", False)  # type: ignore[arg-type]
        rig.shelf.bases._begin(dead)
        rig.pool.create("bs_dead")
        await rig.service.recovery.recover()
        base = await rig.base(acquired)
        assert base.id != "bs_dead"
        assert "bs_dead" not in rig.pool.names()


async def test_who_is_cancelled_or_fails_leaves_neither_row_nor_tree(state_dir: Path, origin: Origin) -> None:
    async with opened(state_dir) as rig:
        acquired = await rig.acquire(origin)
        with pytest.raises(InvalidArgumentError, match="cannot be checked out"):
            await rig.base(acquired, "not..a branch")
        assert rig.shelf.bases.of(acquired.repository) == ()
        asking = asyncio.ensure_future(rig.base(acquired))
        while not rig.shelf.bases.of(acquired.repository):  # noqa: ASYNC110 (a row, which tells nobody)
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        assert (await rig.base(acquired)).is_whole  # the maker went on, or the next one began anew
    async with opened(state_dir) as rig:
        await rig.shelf.bases.recover()
        assert len([name for name in rig.pool.names() if name.startswith("bs_")]) == 1
        assert [name for name in rig.pool.names() if name.startswith("wk_")] == []


async def test_checking_out_runs_nothing_of_the_repository(module_state: Path, origin: Origin, tmp_path: Path) -> None:
    """Neither on the host, nor in the workshop: a filter without a configuration is none, and hooks are not copied."""
    origin.commit(
        {
            ".gitattributes": "* filter=evil diff=evil merge=evil ident\n",
            ".gitmodules": '[submodule "m"]\n\tpath = m\n\turl = ext::sh -c touch% /workspace/canary\n',
            ".gitconfig": "[core]\n\tfsmonitor = touch /workspace/canary\n",
            "hooks/post-checkout": "#!/bin/sh\ntouch /workspace/canary\n",
        }
    )
    async with opened(module_state) as rig:
        base = await rig.base(await rig.acquire(origin))
        async with rig.over(base) as shop:
            assert await says(shop, "ls .git/hooks canary 2>/dev/null | wc -l") == "0"
            assert await says(shop, "git status --porcelain") == ""


async def test_a_workshop_is_nobodys_sandbox_and_dead_afterwards(state_dir: Path, origin: Origin) -> None:
    async with opened(state_dir) as rig:
        base = await rig.base(await rig.acquire(origin))
        async with rig.over(base) as shop:
            assert await rig.service.perform(ListSandboxes(ended=True), ME) == ()
            await rig.service.recovery.sweep()  # a sweep does not end what is in use
            assert await says(shop, "echo alive") == "alive"
            with pytest.raises(ErrandFailedError, match="more than 10000 bytes"):
                await shop.run("yes", output_bytes=10_000)
            with pytest.raises(ErrandFailedError, match="ended with 3: no room"):
                await shop.run("echo no room >&2; exit 3")
        async with rig.over(base, command_seconds=0.2) as shop:
            with pytest.raises(ErrandFailedError, match="come to an end"):
                await shop.run("exec sleep 3600")
        with pytest.raises(RuntimeError, match="the block failed"):
            async with rig.over(base):
                raise RuntimeError("the block failed")
        backend = rig.service._backends.choose(None)
        assert {id for id, ending in (await backend.state()).living.items() if ending is None} == set()
        assert [name for name in rig.pool.names() if name.startswith("wk_")] == []
        assert rig.shelf.utilities.living() == set()
    log = "".join(path.read_text() for path in (state_dir / "audit").glob("*.jsonl"))
    assert log.count('"workshop"') >= 3


async def test_a_workshop_that_a_dead_daemon_has_left_is_ended_by_the_next(module_state: Path, origin: Origin) -> None:
    async with opened(module_state) as rig:
        base = await rig.base(await rig.acquire(origin))
        async with rig.over(base):
            await rig.service.recovery.recover()
            backend = rig.service._backends.choose(None)
            assert {id for id, ending in (await backend.state()).living.items() if ending is None} == set()


async def test_a_repository_that_something_needs_is_not_deleted(
    state_dir: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(state_dir) as rig:
        acquired = await rig.acquire(origin)
        base = await rig.base(acquired)
        sandbox = await rig.service.perform(CreateSandbox(), ME)
        row = rig.service.store.get(sandbox.id)
        assert row is not None
        tree = WorkspaceTree("ws_x", (base.id,), base.repository)
        needing = [need._replace(by=sandbox.id) for need in _needs(row, tree)]
        monkeypatch.setattr(_bases, "trees_needed", lambda store: {need.tree: (need,) for need in needing})
        with pytest.raises(InvalidStateError, match=sandbox.id):
            await rig.service.perform(DeleteRepository(repository=acquired.repository), ME)
        (candidate,) = await rig.shelf.bases.candidates()
        assert sandbox.id in (candidate.kept or "")
        monkeypatch.undo()
        await rig.service.perform(KillSandbox(sandbox=sandbox.id), ME)
        await rig.service.perform(DeleteRepository(repository=acquired.repository), ME)
        assert await rig.service.perform(ListRepositories(), ME) == ()
        assert base.id not in rig.pool.names()
        again = await rig.base(await rig.acquire(origin))
        (candidate,) = await rig.shelf.bases.candidates()
        assert (candidate.only_when_full, candidate.kept) == (True, None)
        assert await candidate.take(candidate.what) is None
        assert again.id not in rig.pool.names()


async def test_submodules_come_from_caches_of_their_own_as_deep_as_they_go(
    module_state: Path, origins: Path, origin: Origin, daemon: Any
) -> None:
    inner, middle = Origin(origins / "inner"), Origin(origins / "middle")
    inner.commit({"deepest": "1\n"})
    middle.commit({"file": "2\n"})
    link(middle, "lib/inner", inner.head(), "../inner")
    link(origin, "vendor/middle", middle.head(), address(daemon, "middle"))
    async with opened(module_state) as rig:
        acquired = await rig.service.perform(AcquireRepository(url=address(daemon, "app")), ME)
        async with rig.over(await rig.base(acquired, submodules=True)) as shop:
            assert await says(shop, "cat vendor/middle/file vendor/middle/lib/inner/deepest") == "2\n1"
            assert await says(shop, "git status --porcelain; git -C vendor/middle status --porcelain") == ""
            assert await says(shop, "git -C vendor/middle/lib/inner rev-parse HEAD") == inner.head()
            assert await says(shop, "git submodule status | cut -c 1-41 | tr ' ' =") == "=" + middle.head()


async def test_submodules_that_nobody_asked_for_are_neither_fetched_nor_hidden(
    state_dir: Path, origins: Path, origin: Origin, daemon: Any, http: HttpServer
) -> None:
    inner = Origin(origins / "inner")
    inner.commit({"file": "1\n"})
    link(origin, "m", inner.head(), address(http, "inner/.git", "http"))
    async with opened(state_dir) as rig:
        url = address(http, "app/.git", "http")

        async def work(name: str, *, submodules: bool) -> Workspace:
            return await rig.service.perform(OpenWorkspace(name=name, url=url, submodules=submodules), ME)

        without = await work("without", submodules=False)
        assert (without.submodules, without.unfetched) == (False, 1)
        assert [path for path, _ in http.asked if path.startswith("/inner")] == []
        with pytest.raises(InvalidStateError, match="has submodules False, not True"):
            await work("without", submodules=True)
        assert (await work("without", submodules=False)).unfetched == 1
        asked = await work("with", submodules=True)
        assert (asked.submodules, asked.unfetched) == (True, 0)
        assert (await work("with", submodules=False)).submodules, "one that is there keeps what it has"
        acquired = await rig.service.perform(AcquireRepository(url=url), ME)
        for submodules in (True, False):
            async with rig.over(await rig.base(acquired, submodules=submodules)) as shop:
                assert await says(shop, "ls m; git status --porcelain") == ("file" if submodules else "")


@pytest.mark.parametrize(
    "url",
    ["/srv/secret", "file:///srv/secret", "../../../../srv/secret", "ext::sh", "ssh://h/x", "http://u:p@h/x", "fd::3"],
)
async def test_submodules_from_elsewhere_are_left_empty_and_recorded(
    module_state: Path, origin: Origin, daemon: Any, url: str
) -> None:
    link(origin, "m", origin.head(), url)
    before = audited(module_state)
    async with opened(module_state) as rig:
        acquired = await rig.service.perform(AcquireRepository(url=address(daemon, "app")), ME)
        async with rig.over(await rig.base(acquired, submodules=True)) as shop:
            assert await says(shop, "ls -A m; git status --porcelain") == ""
    assert [line for line in audited(module_state) - before if "submodule.empty" in line]


@pytest.mark.parametrize("url", ["ssh://git@h/x", "git@h:x", "https://u:p@h/x", "file:///srv/x", "/srv/x"])
async def test_not_even_for_who_may_see_the_repository_is_a_submodule_fetched_by_another_way(url: str) -> None:
    """A private one's submodules are fetched as its principal, whose ssh keys and directories are not for them."""
    asked: list[str] = []

    async def acquire(url: str, commit: str, principal: Principal, home: str) -> Acquired:
        asked.append(url)
        raise AssertionError

    submodule = Submodule(path="m", commit="0" * 40, url=url, parent="", name="m")
    with pytest.raises(InvalidArgumentError, match="from the network"):
        await acquire_submodule(acquire, submodule, ME.id, "")
    assert asked == []


async def test_a_public_repository_gets_at_no_private_one_by_a_submodule(
    module_state: Path, origins: Path, origin: Origin, http: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base of a public repository is everybody's: what is in it must be, too."""
    from paddock.storage import git as repositories
    from paddock.storage.git import _remote

    async def credential(remote: Any) -> Any:
        return repositories.Credential("alice", "s3cret")

    monkeypatch.setattr(repositories, "ambient", credential)
    private = Origin(origins / "private")
    private.commit({"secret": "s3cret"})
    http.protect("private", "alice", "s3cret")
    monkeypatch.setattr(_remote, "_is_public", lambda _: True)  # as if the server stood elsewhere
    link(origin, "m", private.head(), address(http, "private/.git", "http"))
    async with opened(module_state) as rig:
        direct = await rig.service.perform(AcquireRepository(url=address(http, "private/.git", "http")), ME)
        assert direct.commit == private.head()
        acquired = await rig.service.perform(AcquireRepository(url=address(http, "app/.git", "http")), ME)
        async with rig.over(await rig.base(acquired, submodules=True)) as shop:
            assert await says(shop, "ls -A m") == ""


def link(origin: Origin, path: str, commit: str, url: str) -> None:
    lines = f'[submodule "{path}"]\n\tpath = {path}\n\turl = {url}\n'
    (origin.path / ".gitmodules").write_text(lines)
    origin.git("update-index", "--add", "--cacheinfo", f"160000,{commit},{path}")
    origin.git("add", ".gitmodules")
    origin.git("commit", "-q", "-m", "submodule")


def _needs(row: Any, tree: WorkspaceTree) -> list[Any]:
    from paddock.daemon.store.references import _of_workspace

    return list(_of_workspace(row.id, tree))


async def test_the_next_workspace_begins_with_a_copy_that_was_made_ahead(
    module_state: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(module_state) as rig:
        if rig.pool.driver != "btrfs":
            pytest.skip(f"the pool's driver is {rig.pool.driver}, which makes none ahead")
        monkeypatch.setattr("paddock.daemon.workspaces._bases._PAUSE_SECONDS", 0.0)
        base, bases = await rig.base(await rig.acquire(origin)), rig.shelf.bases
        await bases.derive(base, "zz_first", limit_bytes=1 << 30)
        ahead = f"nx_{base.id.removeprefix('bs_')}"
        await made_ahead()
        tree = rig.pool.open(ahead)
        os.close(os.open("root/mark", os.O_CREAT | os.O_WRONLY, dir_fd=tree))
        os.close(tree)
        taken = [
            one for one in (await rig.service.perform(CollectGarbage(dry_run=True), ME)).items if one.what == ahead
        ]
        assert taken == [], "it is needed"
        assert await bases.derive(base, "zz_next", limit_bytes=1 << 30) == ()
        tree = rig.pool.open("zz_next")
        os.stat("root/mark", dir_fd=tree)
        os.close(tree)
        if os.getuid() == 0:
            assert rig.pool.usage("zz_next").limit_bytes == 1 << 30
        await made_ahead()  # and again
        await bases.delete(base)
        assert ahead not in rig.pool.names()
        for name in ("zz_first", "zz_next"):
            rig.pool.delete(name)
        rig.pool.create(ahead)  # by one who was late
        await rig.service.perform(CollectGarbage(), ME)
        assert ahead not in rig.pool.names()


async def made_ahead() -> None:
    async with asyncio.timeout(60):
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name().startswith("spare of ")))


async def test_a_pool_driver_that_is_asked_for_is_taken_or_refused(state_dir: Path) -> None:
    configure(state_dir, pool_driver="copy")
    async with opened(state_dir) as rig:
        assert rig.pool.driver == "copy"
    configure(state_dir, pool_driver="overlay")  # its trees are where they are
    async with AsyncExitStack() as stack:
        node = Node(state_dir)
        stack.push_async_callback(node.aclose)
        with pytest.raises(InvalidStateError, match="on copy, not on overlay"):
            await node.perform(CreateSandbox(), ME)
