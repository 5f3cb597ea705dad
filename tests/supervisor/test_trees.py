"""Durable trees inside a sandbox: who sees what, what may be written, and what stays."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from paddock.backends import Instance, TreeMount
from paddock.errors import InvalidArgumentError, PlatformError
from paddock.model import ExecId, ExecSpec, IdPrefix, Limits, mint
from paddock.storage import Pool
from paddock.supervisor import layout
from paddock.supervisor.layout import TREE_ID_BASE
from tests.conformance.trees import Root, describe
from tests.conftest import private_state
from tests.supervisor.conftest import Yard, clear, configure, player, run

Scene = Callable[[Yard], Awaitable[Any]]


@pytest.fixture(scope="module", params=["the best"] * (os.geteuid() == 0) + ["overlay", "copy"])
def state_of_module(request: pytest.FixtureRequest) -> Generator[Path]:
    """One for each driver, of which the best is an ordinary user's overlay or copy. Its supervisor looks at limits
    more often than usual.
    """
    with private_state() as directory:
        configure(directory, None if request.param == "the best" else request.param, watch_seconds=0.2)
        yield directory


@pytest.fixture
def play(module_state: Path) -> Callable[[Scene], Any]:
    """Runs a scene; its trees are deleted after it, and its ends forgotten."""

    def perform(scene: Scene) -> Any:
        async def act(yard: Yard) -> Any:
            try:
                return await scene(yard)
            finally:
                clear(yard)

        return player(module_state, tidy=True)(act)

    return perform


async def once(yard: Yard, script: str, *trees: TreeMount, user: str | None = None) -> str:
    """What a sandbox over these trees prints, to its end."""
    instance = await yard.backend.create(yard.plan(trees=trees))
    try:
        return await said(instance, script, user=user)
    finally:
        await instance.kill()


async def said(instance: Instance, script: str, *, user: str | None = None) -> str:
    return (await run(instance, "sh", "-c", script, user=user))[1].decode()


def workspace(tree: str = "ws_1", *, writable: bool = True, layers: tuple[str, ...] = ()) -> TreeMount:
    return TreeMount(tree=tree, target="/workspace", writable=writable, layers=layers)


def base(pool: Pool) -> None:
    pool.create("bs_1")
    with Root(pool, "bs_1") as root:
        (root / "d").mkdir()
        (root / "d/file").write_text("base\n")
        if os.getuid() == 0:
            for path in (".", "d", "d/file"):
                os.chown(root / path, TREE_ID_BASE + 1000, TREE_ID_BASE + 1000)


def test_what_is_written_to_it_stays_for_the_next_sandbox(play: Any) -> None:
    async def scene(yard: Yard) -> None:
        yard.pool.create("ws_1")
        assert await once(yard, "stat -c %U .; echo kept > file; mkdir d; chmod 700 d", workspace()) == "user\n"
        assert await once(yard, "cat file; stat -c %U:%a d", workspace()) == "kept\nuser:700\n"
        with Root(yard.pool, "ws_1") as root:
            assert (root / "file").read_text() == "kept\n"
            assert (root / "file").stat().st_uid == (TREE_ID_BASE + 1000 if os.getuid() == 0 else os.getuid())

    play(scene)


def test_what_was_derived_changes_nothing_of_its_source(play: Any) -> None:
    async def scene(yard: Yard) -> None:
        base(yard.pool)
        with Root(yard.pool, "bs_1") as root:
            before = describe(root)
        layers = {name: yard.pool.derive("bs_1", name) for name in ("ws_1", "ws_2")}
        mount = workspace(layers=layers["ws_1"])
        script = "stat -c %U . d/file; echo mine > d/file; sync d/file; mv d e && cat e/file; touch new"
        assert await once(yard, script, mount) == "user\nuser\nmine\n"
        assert await once(yard, "cat e/file; ls; rm -r e", mount) == "mine\ne\nnew\n"
        assert await once(yard, "ls", mount) == "new\n"
        assert await once(yard, "cat d/file", workspace("ws_2", layers=layers["ws_2"])) == "base\n"
        with Root(yard.pool, "bs_1") as root:
            assert describe(root) == before

    play(scene)


def test_one_that_is_not_writable_is_read_only(play: Any) -> None:
    async def scene(yard: Yard) -> None:
        base(yard.pool)
        layers = yard.pool.derive("bs_1", "ws_1")
        assert await once(yard, "echo more > new", workspace(layers=layers)) == ""
        mount = workspace(writable=False, layers=layers)
        seen = await once(yard, "cat d/file new; touch other || echo refused", mount)
        assert seen.startswith("base\nmore\n")
        assert "Read-only file system" in seen
        assert seen.endswith("refused\n")

    play(scene)


def test_set_user_id_and_devices_mean_nothing_in_it(play: Any) -> None:
    async def scene(yard: Yard) -> None:
        base(yard.pool)
        repository(yard)
        layers = yard.pool.derive("bs_1", "ws_1")
        mount = workspace(layers=layers)
        found = await once(yard, "grep -E ' (/workspace|/run/[^ ]*) ' /proc/self/mounts", mount, OBJECTS)
        options = {line.split()[1]: set(line.split()[3].split(",")) for line in found.splitlines()}
        assert options["/workspace"] >= {"rw", "nosuid", "nodev"}
        assert options["/run/paddock/repository"] >= {"ro", "nosuid", "nodev", "noexec"}

    play(scene)


OBJECTS = TreeMount(tree="rp_1", target="/run/paddock/repository", writable=False)


def repository(yard: Yard) -> Path:
    """As the host's git leaves it: nobody else may read it."""
    place = yard.state_dir / layout.REPOSITORIES / "rp_1"
    (place / "objects").mkdir(parents=True, mode=0o700)
    (place / "objects/pack").write_text("packed\n")
    place.chmod(0o700)
    (place / "objects/pack").chmod(0o400)
    if os.getuid() == 0:
        for path in (place, place / "objects", place / "objects/pack"):
            os.chown(path, 4321, 4321)
    return place


def test_a_repository_of_the_host_is_the_users_own_to_read_and_nobodys_to_write(play: Any) -> None:
    async def scene(yard: Yard) -> None:
        place = repository(yard)
        before = describe(place)
        script = "cd /run/paddock/repository; stat -c %U . objects/pack; cat objects/pack; touch new || echo refused"
        for user in (None, *(["root"] if os.getuid() == 0 else [])):
            seen = await once(yard, script, OBJECTS, user=user)
            assert seen.startswith("user\nuser\npacked\n"), seen
            assert seen.endswith("refused\n")
            assert "Read-only file system" in seen
        assert describe(place) == before

    play(scene)


def test_both_at_once_and_a_mount_inside_the_other(play: Any) -> None:
    async def scene(yard: Yard) -> None:
        repository(yard)
        yard.pool.create("ws_1")
        inside = TreeMount(tree="rp_1", target="/workspace/deep/objects", writable=False)
        seen = await once(
            yard, "cat /run/paddock/repository/objects/pack deep/objects/objects/pack", workspace(), inside, OBJECTS
        )
        assert seen == "packed\n" * 2

    play(scene)


def test_what_is_not_there_is_refused_and_leaves_nothing(play: Any) -> None:
    async def scene(yard: Yard) -> None:
        for mount in (workspace("ws_none"), workspace(layers=("bs_none",)), OBJECTS):
            yard.pool.create("ws_1")
            with pytest.raises(
                InvalidArgumentError, match=f"{mount.tree} cannot be mounted at '{mount.target}': it is not there"
            ):
                await yard.backend.create(yard.plan(trees=(mount,)))
            yard.pool.delete("ws_1")
        assert not (await yard.backend.state()).living
        assert await once(yard, "echo fine") == "fine\n"

    play(scene)


@pytest.mark.parametrize("target", ["/workspace", "/run", "/run/paddock"])
def test_what_was_planted_where_it_is_to_be_seen_misleads_nobody(play: Any, target: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)

    async def scene(yard: Yard) -> None:
        repository(yard)
        plan = yard.plan(trees=(workspace(), OBJECTS))
        yard.pool.create("ws_1")
        with Root(yard.pool, plan.tree) as root:
            place = root / target.lstrip("/")
            place.parent.mkdir(exist_ok=True)
            if place.is_dir():
                place.rename(place.with_name("was"))
            place.symlink_to(tmp_path)
        with pytest.raises(PlatformError):
            await yard.backend.create(plan)

    play(scene)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("link", ["../../secret", "/etc", "."])
def test_a_tree_that_is_a_link_is_not_followed(play: Any, link: str) -> None:
    """Nobody inside can make one there; should one be there all the same, it leads nowhere."""

    async def scene(yard: Yard) -> None:
        (yard.state_dir / layout.REPOSITORIES).mkdir()
        (yard.state_dir / layout.REPOSITORIES / "rp_1").symlink_to(link)
        with pytest.raises(InvalidArgumentError, match="cannot be mounted"):
            await yard.backend.create(yard.plan(trees=(OBJECTS,)))

    play(scene)


@pytest.mark.parametrize("limit", ["disk", "inodes"])
def test_its_limits_hold_for_the_workspace_too(play: Any, limit: str) -> None:
    async def scene(yard: Yard) -> None:
        yard.pool.create("ws_1", limit_bytes=16 << 20)
        mount = TreeMount(tree="ws_1", target="/workspace", writable=True, disk_bytes=16 << 20)
        instance = await yard.backend.create(yard.plan(trees=(mount,), limits=Limits(inodes=2000)))
        if limit == "disk" and yard.pool.usage("ws_1") is not None:
            assert "quota exceeded" in await said(instance, "head -c 32M /dev/zero > big")
            await instance.kill()
            return
        fill = "for n in $(seq 8); do head -c 4M /dev/zero > $n; done" if limit == "disk" else "seq 3000 | xargs touch"
        spec = ExecSpec(argv=("sh", "-c", f"{fill}; sleep 600"))
        await instance.start(spec, id=ExecId(mint(IdPrefix.EXEC)), background=True)
        assert (await asyncio.wait_for(instance.wait_ended(), 60)).limit == limit
        assert "ws_1" in yard.pool.names()

    play(scene)
