"""Virtual machines: a fork goes on where its parent stood, with processes, memory, connections and files."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path

import msgspec
import pytest

from paddock.backends import SandboxPlan
from paddock.errors import PaddockError
from paddock.model import Noun, SandboxId, SandboxSpec, mint
from paddock.testing.conformance import AdoptionConformance
from paddock.testing.conformance._box import Box
from tests.backends.microvms import MicrovmHarness, microvm_harness

SECONDS = 300
# Holds a number in memory, a connection with itself, and a file whose end is nowhere but in memory; says what it has
# when asked by a second line of input through a fifo.
LIVE = """
import os, socket
server = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(server.getsockname())
far, _ = server.accept()
file = open("/home/user/unsaved", "w+")
state = {"count": 0}
os.mkfifo("/tmp/ask"); os.mkfifo("/tmp/answer")
while True:
    with open("/tmp/ask") as ask: word = ask.read().strip()
    state["count"] += 1
    near.sendall(word.encode())
    heard = far.recv(100).decode()
    file.write(heard + ","); file.flush()
    file.seek(0); said = file.read()
    with open("/tmp/answer", "w") as answer: answer.write(f"{state['count']} {os.getpid()} {said}")
"""
ASK = 'printf "$1" > /tmp/ask; cat /tmp/answer'


@pytest.fixture(scope="module")
def microvms() -> Generator[MicrovmHarness]:
    with microvm_harness() as harness:
        yield harness


class TestAdoption(AdoptionConformance):
    """The whole contract is checked in test_microvm_conformance."""

    @pytest.fixture
    def harness(self, microvms: MicrovmHarness) -> MicrovmHarness:
        return microvms


class Family:
    """Sandboxes of one backend; all are ended together."""

    def __init__(self, harness: MicrovmHarness) -> None:
        self.harness, self.backend = harness, harness.backend()
        self._boxes: list[Box] = []
        self._plans: list[SandboxPlan] = []

    async def begin(self) -> Box:
        return await self.create(await self.harness.plan(SandboxSpec(ttl_seconds=SECONDS)))

    async def fork(self, parent: Box) -> Box:
        plan = self.copy_plan(parent)
        async with parent.instance.frozen():
            self.harness.pool.snapshot(parent.plan.tree, plan.tree)
        return await self.create(plan)

    def copy_plan(self, parent: Box) -> SandboxPlan:
        id = SandboxId(mint(Noun.SANDBOX))
        return msgspec.structs.replace(parent.plan, id=id, tree=id, hostname=id.replace("_", "-"))

    async def create(self, plan: SandboxPlan) -> Box:
        self._plans.append(plan)
        box = Box(await self.backend.create(plan), plan)
        self._boxes.append(box)
        return box

    async def end(self) -> None:
        for box in self._boxes:
            await box.let_go()
            await box.instance.kill()
            await box.instance.aclose()
        for plan in self._plans:
            await self.backend.forget(plan.id)
            await self.harness.cleanup(plan)
        await self.backend.aclose()


def play(harness: MicrovmHarness, test: Callable[[Family], Awaitable[None]]) -> None:
    async def whole() -> None:
        family = Family(harness)
        try:
            async with asyncio.timeout(SECONDS):
                await test(family)
        finally:
            await family.end()

    asyncio.run(whole())


async def _ask(box: Box, word: str) -> tuple[int, str, str]:
    count, pid, said = (await box.sh(ASK, word)).text.split(" ", 2)
    return int(count), pid, said


def test_a_fork_and_its_fork_go_on_with_memory_connections_and_files(microvms: MicrovmHarness, tmp_path: Path) -> None:
    async def test(family: Family) -> None:
        parent = await family.begin()
        await parent.start_python(LIVE, background=True)
        await parent.sh("while [ ! -p /tmp/answer ]; do sleep 0.1; done")
        first, pid, _ = await _ask(parent, "a")
        assert first == 1
        child = await family.fork(parent)
        assert await _ask(child, "b") == (2, pid, "a,b,")
        assert await _ask(parent, "c") == (2, pid, "a,c,")
        grandchild = await family.fork(child)
        assert await _ask(grandchild, "d") == (3, pid, "a,b,d,")
        assert await _ask(child, "e") == (3, pid, "a,b,e,")
        own = ("cat", "/proc/sys/kernel/hostname", "/etc/machine-id")
        assert len({(await box.run(*own)).out for box in (parent, child, grandchild)}) == 3
        await grandchild.sh("sync; echo 3 > /proc/sys/vm/drop_caches", user="root")
        assert await _ask(grandchild, "f") == (4, pid, "a,b,d,f,")
        assert (await grandchild.sh("sync /home/user/unsaved; cat /home/user/unsaved")).out == b"a,b,d,f,"
        copy = family.copy_plan(grandchild)
        async with grandchild.instance.frozen():
            family.harness.pool.snapshot(grandchild.plan.tree, copy.tree)
        _check_disk(family, copy.tree, tmp_path / "disk")

    play(microvms, test)


def _check_disk(family: Family, tree: str, copy: Path) -> None:
    """What a machine that loses its power would find: its journal, and then nothing wrong."""
    try:
        fd = family.harness.pool.open(tree)
        try:
            shutil.copyfile(f"/proc/self/fd/{fd}/root/vm/disk", copy)
        finally:
            os.close(fd)
    finally:
        family.harness.pool.delete(tree)
    replayed = subprocess.run(["/usr/sbin/e2fsck", "-p", copy], capture_output=True, check=False)
    assert replayed.returncode in (0, 1), replayed.stdout
    checked = subprocess.run(["/usr/sbin/e2fsck", "-fn", copy], capture_output=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_no_two_machines_draw_the_same_numbers(microvms: MicrovmHarness) -> None:
    async def test(family: Family) -> None:
        parent = await family.begin()
        children = [await family.fork(parent) for _ in range(2)]
        drawn = [(await box.sh("head -c 16 /dev/urandom | od -An -tx1")).text for box in (parent, *children)]
        assert len(set(drawn)) == 3

    play(microvms, test)


@pytest.mark.parametrize("damage", ["short", "gone", "foreign"])
def test_a_state_that_is_not_whole_is_refused(microvms: MicrovmHarness, damage: str) -> None:
    async def test(family: Family) -> None:
        parent = await family.begin()
        plan = family.copy_plan(parent)
        async with parent.instance.frozen():
            family.harness.pool.snapshot(parent.plan.tree, plan.tree)
        fd = family.harness.pool.open(plan.tree)
        try:
            place = Path(f"/proc/self/fd/{fd}/root/vm")
            if damage == "short":
                os.truncate(place / "ram", 1 << 20)
            elif damage == "gone":
                (place / "state").unlink()
            else:
                (place / "lines").write_bytes((place / "lines").read_bytes().replace(b"QEMU 7", b"QEMU 6"))
        finally:
            os.close(fd)
        words = {"short": "memory of the machine", "gone": "state", "foreign": "was saved by QEMU 6"}[damage]
        with pytest.raises(PaddockError, match=words):
            await family.create(plan)
        assert (await parent.sh("echo lives")).text == "lives"

    play(microvms, test)
