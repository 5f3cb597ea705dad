"""What waits becomes a sandbox over a workspace: that is mounted when it is claimed, whole and kept, or it ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paddock.backends import SandboxPlan, TreeMount
from paddock.errors import PaddockError
from paddock.model import IdPrefix, Mount, MountMode, mint
from tests.backends.spares import settled
from tests.backends.test_killed_agent import alive
from tests.backends.test_vmm import output
from tests.backends.test_waiting import Room, state_of
from tests.backends.vmms import PlainVmm, VmmHarness, vmms


class LateVmm(PlainVmm):
    late_trees = True


class Desk(Room):
    """Over a workspace, in which there is a file."""

    async def over(self, workspace: str, *protect: str, **changes: Any) -> SandboxPlan:
        plan = await self.plan(**changes)
        trees = (TreeMount(tree=workspace, target="/workspace", writable=True, disk_bytes=1 << 30),)
        self.plans[-1] = msgspec.structs.replace(plan, trees=trees, protect=protect)
        return self.plans[-1]

    def workspace(self) -> str:
        name = mint(IdPrefix.WORKSPACE)
        self.harness.pool.create(name)
        return name


@pytest.fixture(scope="module")
def harness() -> Generator[VmmHarness]:
    with vmms(for_tests=True) as found:
        yield found


def play(harness: VmmHarness, scene: Callable[[Desk, str], Awaitable[None]]) -> None:
    async def main() -> None:
        desk = Desk(harness, LateVmm(harness.state_dir, for_tests=True))
        workspace = desk.workspace()
        try:
            await scene(desk, workspace)
        finally:
            await desk.close()
            harness.pool.delete(workspace)
        assert desk.waiting() == desk.trees() == []

    asyncio.run(main())


def test_it_is_over_the_workspace_and_leaves_what_it_writes_there(harness: VmmHarness) -> None:
    async def scene(desk: Desk, workspace: str) -> None:
        first = await desk.create(await desk.over(workspace))
        assert await output(first, "sh", "-c", "mkdir a; echo good > a/b; id -u > who") == b""
        await first.kill()
        await settled(desk.backend.waiting)
        (id,) = desk.waiting()
        vmm = state_of(desk, id)
        assert vmm["trees"] == {}, "what waits is over nobody's workspace"
        plan = await desk.over(workspace)
        second = await desk.create(plan)
        record = state_of(desk, plan.id)
        assert record["pid"] == vmm["pid"], "it was not made anew"
        assert record["trees"] == {workspace: 1 << 30}, "the supervisor watches its limit"
        script = "cat a/b; echo more > a/c; stat -c %u who | cmp - who; grep -c ' /workspace ' /proc/self/mountinfo"
        assert await output(second, "sh", "-c", script) == b"good\n1\n"
        await second.kill()
        third = await desk.create(msgspec.structs.replace(await desk.over(workspace), instance_id=1))
        assert await output(third, "cat", "a/c") == b"more\n"

    play(harness, scene)


def test_what_its_policy_protects_is_kept(harness: VmmHarness) -> None:
    async def scene(desk: Desk, workspace: str) -> None:
        first = await desk.create(await desk.over(workspace))
        assert await output(first, "sh", "-c", "mkdir a; echo good > a/b") == b""
        await first.kill()
        await settled(desk.backend.waiting)
        (id,) = desk.waiting()
        pid = state_of(desk, id)["pid"]
        plan = await desk.over(workspace, "/workspace/a/b", "/workspace/none")
        second = await desk.create(plan)
        assert state_of(desk, plan.id)["pid"] == pid
        script = "for how in 'echo bad > a/b' 'rm a/b' 'mv a c' 'rm -r a'; do ! sh -c \"$how\" 2>&1 || echo $how; done"
        said = await output(second, "sh", "-c", f"{{ {script}; }} | grep -v :; cat a/b; echo new > a/c")
        assert said == b"good\n"

    play(harness, scene)


def test_directories_of_the_host_are_mounted_as_they_were_asked_for(harness: VmmHarness, tmp_path: Path) -> None:
    async def scene(desk: Desk, workspace: str) -> None:
        names = ("cow", "ro", "rw")
        for name in names:
            (tmp_path / name).mkdir()
            (tmp_path / name / "file").write_text(f"{name}\n")
        mounts = [Mount(source=str(tmp_path / name), target=f"/mnt/{name}", mode=MountMode(name)) for name in names]
        pid = state_of(desk, await desk.stock())["pid"]
        plan = await desk.plan(mounts=tuple(mounts))
        instance = await desk.create(plan)
        assert state_of(desk, plan.id)["pid"] == pid
        script = "for name in cow ro rw; do (echo new > /mnt/$name/file) 2>/dev/null; done; cat /mnt/*/file"
        assert (await output(instance, "sh", "-c", script)).split() == [b"new", b"ro", b"new"]
        assert [(tmp_path / name / "file").read_text() for name in names] == ["cow\n", "ro\n", "new\n"]

    play(harness, scene)


def test_what_was_written_over_such_a_directory_before_is_not_lost(harness: VmmHarness, tmp_path: Path) -> None:
    async def scene(desk: Desk, workspace: str) -> None:
        plan = await desk.plan(mounts=(Mount(source=str(tmp_path)),))
        harness.pool.add_mounts(plan.tree, 1)
        await desk.stock()
        desk.backend.waiting.count = 0
        tree = harness.pool.open(plan.tree)
        try:
            os.mkdir("mount0/kept", dir_fd=tree)  # as in the copy of a snapshot whose own files are untouched
        finally:
            os.close(tree)
        instance = await desk.create(plan)
        assert await output(instance, "ls", "/workspace") == b"kept\n"

    play(harness, scene)


def test_a_directory_that_is_not_there_fails_the_create_with_its_name(harness: VmmHarness, tmp_path: Path) -> None:
    async def scene(desk: Desk, workspace: str) -> None:
        await desk.stock()
        desk.backend.waiting.count = 0
        plan = await desk.plan(mounts=(Mount(source=str(tmp_path / "none")),))
        with pytest.raises(PaddockError, match="there is no such directory"):
            await desk.create(plan)

    play(harness, scene)


@pytest.mark.parametrize("step", ["mounts", "mounts!", "rename!", "written!"])
def test_a_claim_that_fails_leaves_the_workspace_to_the_one_that_is_made(harness: VmmHarness, step: str) -> None:
    async def scene(desk: Desk, workspace: str) -> None:
        id = await desk.stock()
        first = state_of(desk, id)["pid"]
        desk.backend.waiting.count = 0
        desk.backend.fault = f"claim:{step}"
        plan = await desk.over(workspace)
        instance = await desk.create(plan)
        desk.backend.fault = ""
        assert state_of(desk, plan.id)["pid"] != first
        assert not alive(first)  # though the tests' supervisor may have to reap it yet, if its supervisor died
        assert await output(instance, "sh", "-c", "echo mine > file; cat file") == b"mine\n"
        assert desk.waiting() == desk.trees() == []

    play(harness, scene)
