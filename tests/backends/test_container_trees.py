"""A workspace in a container: what the pool has goes in, and what the container has written comes out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Generator

import msgspec
import pytest

from paddock.backends import SandboxPlan, TreeMount
from paddock.backends.container._transfer import TransferJails
from paddock.backends.jail import JailBackend
from paddock.backends.jail.backend import JailInstance
from paddock.errors import PlatformError
from paddock.model import SandboxId, SandboxSpec
from paddock.supervisor import layout
from paddock.supervisor._running import UNFINISHED
from paddock.supervisor.records import Records
from tests.backends.containers import ContainerHarness
from tests.backends.engines import PodmanService
from tests.conformance import Box, eventually

WRITTEN = r"""
set -e
echo new >new; mkdir -p deep/er; echo in >deep/er/file; printf 'a\nb' >'deep/na
me'
echo changed >kept-changed; rm gone; rm -r directory-gone; ln -sf ../kept link; ln new hard
chmod 640 new; chmod 700 deep; echo z >deep/er/$(printf '\303\244'); mkfifo pipe; : >empty
rm -r becomes-file; echo f >becomes-file; rm becomes-directory; mkdir becomes-directory
"""
BEFORE = r"""
set -e
echo kept >kept; echo old >kept-changed; echo gone >gone; mkdir directory-gone; echo x >directory-gone/x
mkdir becomes-file; echo y >becomes-file/y; echo d >becomes-directory; ln -s kept link
"""
LOOK = r"""
find . -printf '%P|%y|%m|%l\n' | sort
find . -type f -links +1 | sort
find . -type f -print0 | sort -z | xargs -0 sha1sum
"""


@pytest.fixture
def tree(containers: ContainerHarness) -> Generator[str]:
    name = f"ws_{os.urandom(6).hex()}"
    containers.pool.create(name)
    try:
        yield name
    finally:
        containers.pool.delete(name)


@contextlib.asynccontextmanager
async def in_jail(containers: ContainerHarness, tree: str) -> AsyncGenerator[Box]:
    backend = JailBackend(containers.state_dir, supervisor=containers.supervisor)
    plan = await containers.plan(SandboxSpec())
    containers.pool.create(plan.id, layers=plan.template.layers)
    plan = msgspec.structs.replace(plan, trees=(TreeMount(tree=tree, target="/workspace", writable=True),))
    try:
        instance = await backend.create(plan)
        try:
            yield Box(instance, plan)
        finally:
            await instance.kill()
            await instance.aclose()
            await backend.forget(plan.id)
    finally:
        containers.pool.delete(plan.id)
        await backend.aclose()


@contextlib.asynccontextmanager
async def in_container(containers: ContainerHarness, tree: str) -> AsyncGenerator[Box]:
    backend = containers.backend()
    plan = await containers.plan(SandboxSpec())
    plan = msgspec.structs.replace(plan, trees=(TreeMount(tree=tree, target="/workspace", writable=True),))
    try:
        instance = await backend.create(plan)
        try:
            yield Box(instance, plan)
        finally:
            await instance.kill()
            await instance.aclose()
            await backend.forget(plan.id)
    finally:
        await backend.aclose()


async def shell(box: Box, script: str, **spec: object) -> str:
    done = await box.sh(script, **spec)
    assert done.status.code == 0, done.err
    return done.text


def test_a_workspace_goes_in_and_comes_out_as_it_was_left(containers: ContainerHarness, tree: str) -> None:
    async def main() -> None:
        async with in_jail(containers, tree) as box:
            await shell(box, BEFORE)
            before = await shell(box, LOOK)
        async with in_container(containers, tree) as box:
            assert await shell(box, LOOK) == before
            await shell(box, WRITTEN)
            left = await shell(box, LOOK)
        async with in_jail(containers, tree) as box:
            assert await shell(box, LOOK) == left

    asyncio.run(main())


def test_what_did_not_change_is_not_written_again(containers: ContainerHarness, tree: str) -> None:
    async def main() -> None:
        async with in_jail(containers, tree) as box:
            await shell(box, "echo same >same; echo other >other")
            before = await shell(box, "stat -c %i same")
        async with in_container(containers, tree) as box:
            await shell(box, "echo changed >other")
        async with in_jail(containers, tree) as box:
            assert await shell(box, "stat -c %i same") == before
            assert await shell(box, "cat other") == "changed"

    asyncio.run(main())


def test_of_one_that_died_by_itself_the_end_is_told_when_its_work_is_out(
    containers: ContainerHarness, tree: str
) -> None:
    async def main() -> None:
        async with in_container(containers, tree) as box:
            await shell(box, "echo work >work")
            record = containers.backend().records.read(box.plan.id)
            assert record is not None
            os.kill(record.pid, signal.SIGKILL)
            async with asyncio.timeout(60):
                await box.instance.wait_ended()
            async with in_jail(containers, tree) as other:
                assert await shell(other, "cat work") == "work"

    asyncio.run(main())


def test_of_one_that_nobody_watched_a_later_service_takes_the_work_out_before_it_tells(
    containers: ContainerHarness, tree: str
) -> None:
    async def main() -> None:
        async with in_container(containers, tree) as box:
            await shell(box, "echo work >work")
            record = containers.backend().records.read(box.plan.id)
            assert record is not None
            os.kill(record.pid, signal.SIGKILL)
            later = containers.backend()
            try:

                async def told() -> bool:
                    return (await later.state()).living[box.plan.id] is not None

                await eventually("its end is told", told)
                async with in_jail(containers, tree) as other:
                    assert await shell(other, "cat work") == "work"
            finally:
                await later.aclose()

    asyncio.run(main())


def test_without_its_engine_a_kill_says_so_and_the_work_is_kept_until_it_is_back(
    containers: ContainerHarness, engine: PodmanService, tree: str
) -> None:
    async def main() -> None:
        async with in_container(containers, tree) as box:
            await shell(box, "echo work >work")
            engine.kill()
            try:
                with pytest.raises(PlatformError, match="cannot be reached"):
                    await box.instance.kill()
            finally:
                engine.start()
            await box.instance.kill()
            async with in_jail(containers, tree) as other:
                assert await shell(other, "cat work") == "work"

    asyncio.run(main())


@pytest.mark.parametrize(
    "script",
    [
        "rm -rf /workspace; ln -s /etc /workspace",
        "rm -rf /workspace",
    ],
)
def test_a_workspace_that_is_made_something_else_takes_nothing_from_the_pool(
    containers: ContainerHarness, engine: PodmanService, tree: str, script: str
) -> None:
    async def main() -> None:
        async with in_jail(containers, tree) as box:
            await shell(box, "echo precious >precious")
        async with in_container(containers, tree) as box:
            await shell(box, script, user="root", cwd="/")
        assert engine.containers() == []
        async with in_jail(containers, tree) as box:
            assert await shell(box, "ls precious /etc/hostname") == "/etc/hostname\nprecious"

    asyncio.run(main())


def test_each_that_carries_has_a_tree_of_its_own_and_takes_away_what_a_killed_one_has_left(
    containers: ContainerHarness, tree: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[SandboxPlan] = []
    create = TransferJails.create

    async def kept(jails: TransferJails, plan: SandboxPlan) -> JailInstance:
        made.append(plan)
        assert [name for name in containers.pool.names() if name.startswith("nc_")] == [plan.tree]
        return await create(jails, plan)

    async def main() -> None:
        monkeypatch.setattr(TransferJails, "create", kept)
        async with in_container(containers, tree) as box:
            containers.pool.create(f"nc_{box.plan.id.partition('_')[2]}_left")
        assert {plan.id for plan in made} == {box.plan.id}

    asyncio.run(main())
    assert len(made) == len({plan.tree for plan in made}) == len({plan.instance_id for plan in made}) == 2
    assert not [name for name in containers.pool.names() if name.startswith("nc_")]


def test_of_a_carrier_that_came_to_nothing_nobody_is_told_as_of_the_sandbox(
    containers: ContainerHarness, tree: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[SandboxId] = []

    async def unfinished(jails: TransferJails, plan: SandboxPlan) -> JailInstance:
        made.append(plan.id)
        directory = os.open(containers.state_dir / layout.RUN, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            Records(directory).write_ended(plan.id, UNFINISHED)  # as the next supervisor does
        finally:
            os.close(directory)
        raise PlatformError("the supervisor went away")

    async def main() -> None:
        monkeypatch.setattr(TransferJails, "create", unfinished)
        with pytest.raises(PlatformError, match="went away"):
            async with in_container(containers, tree):
                pass
        jails = JailBackend(containers.state_dir, supervisor=containers.supervisor)
        try:
            assert not set(made) & set((await jails.state()).living)
        finally:
            await jails.aclose()
        assert made

    asyncio.run(main())
