"""gVisor: a sandbox begins where a guest stood that was started once, and a copy of one has its memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path

import msgspec
import pytest

from paddock.backends import SandboxPlan
from paddock.backends.gvisor import GvisorBackend
from paddock.backends.jail.backend import JailInstance
from paddock.backends.vmm import VmmInstance
from paddock.errors import PaddockError, UnsupportedError
from paddock.model import IdPrefix, Limits, SandboxId, SandboxSpec, mint, replace
from paddock.supervisor.plan import JailPlan
from paddock.vmm._saved import SavedState
from tests.backends.vmms import VmmHarness, furnished
from tests.conformance import _host
from tests.conformance._box import Box
from tests.conftest import private_state

SECONDS = 300
KEY = b"k" * 32
# Holds a number in memory, a connection with itself and an open file; says what it has when asked through a fifo.
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
LEFT_OPEN = """
import os, signal
file = open("/home/user/gone", "w+"); os.unlink("/home/user/gone")
open("/home/user/is-open", "w").close()
signal.pause()
"""


class MemoryHarness(VmmHarness):
    def backend(self) -> GvisorBackend:
        return GvisorBackend(self.state_dir, supervisor=self.supervisor)


@pytest.fixture(scope="module")
def sandboxes() -> Generator[MemoryHarness]:
    with private_state() as state_dir:
        backend = GvisorBackend(state_dir)
        found = backend._look()
        if backend.probe() is not None or isinstance(found, str) or not backend._saves(found):
            pytest.skip(f"no memory of gVisor's can be saved here: {backend.probe() or found}")
        with furnished(state_dir) as (pool, templates):
            yield MemoryHarness(state_dir, pool, templates)


class Family:
    """Sandboxes of one backend; all are ended together."""

    def __init__(self, harness: MemoryHarness) -> None:
        self.harness, self.backend = harness, harness.backend()
        self._boxes: list[Box] = []
        self._plans: list[SandboxPlan] = []

    async def begin(self, **spec: object) -> Box:
        plan = await self.harness.plan(msgspec.convert({"ttl_seconds": SECONDS, **spec}, SandboxSpec))
        return await self.create(plan)

    async def copied(self, parent: Box, **changed: object) -> SandboxPlan:
        """A plan for what the parent is now."""
        id = SandboxId(mint(IdPrefix.SANDBOX))
        plan = replace(parent.plan, id=id, tree=id, hostname=id.replace("_", "-"), **changed)
        async with parent.instance.frozen():
            self.harness.pool.snapshot(parent.plan.tree, plan.tree)
        self._plans.append(plan)
        return plan

    async def fork(self, parent: Box) -> Box:
        return await self.create(await self.copied(parent))

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


def play(harness: MemoryHarness, test: Callable[[Family], Awaitable[None]]) -> None:
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


def test_a_fork_and_its_fork_go_on_with_memory_connections_and_files(sandboxes: MemoryHarness) -> None:
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
        names = [(await box.run("cat", "/proc/sys/kernel/hostname")).text for box in (parent, child, grandchild)]
        assert names == [box.plan.hostname for box in (parent, child, grandchild)]
        drawn = [(await box.sh("head -c 16 /dev/urandom | od -An -tx1")).text for box in (parent, child, grandchild)]
        assert len(set(drawn)) == 3

    play(sandboxes, test)


def test_a_sandbox_begins_where_a_baked_guest_stood_and_has_its_own_name_and_environment(
    sandboxes: MemoryHarness,
) -> None:
    async def test(family: Family) -> None:
        for value in ("one", "two"):
            box = await family.begin(env={"MINE": value})
            assert (await box.sh("echo $MINE; hostname")).text.split() == [value, box.plan.hostname]
            assert isinstance(box.instance, VmmInstance)
            assert (await (await box.instance.control()).call("ping", dict))["restored"]

    play(sandboxes, test)


def test_nobody_inside_sees_or_changes_what_was_saved(sandboxes: MemoryHarness) -> None:
    async def test(family: Family) -> None:
        child = await family.fork(await family.begin())
        for user in ("root", None) if family.backend.capabilities.root_user else (None,):
            look = await child.sh("ls -A /.frozen; echo x >/.frozen/about", user=user)
            assert (look.out, look.status.code) == (b"", 2)
            assert (await child.sh("umount /.frozen", user=user)).status.code != 0
            assert (await child.sh("cat /.baked/.frozen/memory", user=None)).status.code != 0

    play(sandboxes, test)


def test_what_is_baked_for_all_is_nobodys(sandboxes: MemoryHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it fall asleep while it is made: nobody uses it then."""
    made: list[JailPlan] = []
    make = GvisorBackend.make

    async def watched(self: GvisorBackend, plan: SandboxPlan, jail: JailPlan) -> JailInstance:
        made.append(jail)
        return await make(self, plan, jail)

    monkeypatch.setattr(GvisorBackend, "make", watched)

    async def test(family: Family) -> None:
        await family.begin(limits=Limits(open_files=511), idle_seconds=60.0, env={"TOKEN": "mine"})
        oven, own = made
        assert (oven.kind, oven.idle_seconds) == ("oven", 0.0)
        assert "TOKEN" not in oven.env
        assert (own.kind, own.idle_seconds, own.env["TOKEN"]) == ("gvisor", 60.0, "mine")

    play(sandboxes, test)


def test_the_key_of_the_seal_stands_on_no_command_line(sandboxes: MemoryHarness) -> None:
    async def test(family: Family) -> None:
        await family.begin()
        key = await asyncio.to_thread((sandboxes.state_dir / "gvisor.key").read_bytes)
        assert _host.processes(key.hex()) == []

    play(sandboxes, test)


def test_nobody_inside_has_what_init_keeps_for_renewal(sandboxes: MemoryHarness) -> None:
    async def test(family: Family) -> None:
        box = await family.begin()
        tried = "import socket\ntry: socket.sethostname('mine')\nexcept PermissionError: print('refused')"
        for user in ("root", None) if family.backend.capabilities.root_user else (None,):
            assert (await box.python(tried, user=user)).text == "refused"
            sets = (await box.sh("grep -h ^Cap /proc/self/status /proc/$PPID/status", user=user)).text.split()[1::2]
            assert not any(int(one, 16) & (1 << 21 | 1 << 8) for one in sets)

    play(sandboxes, test)


def test_what_cannot_be_saved_is_said_and_the_sandbox_goes_on(sandboxes: MemoryHarness) -> None:
    async def test(family: Family) -> None:
        parent = await family.begin()
        holder = await parent.start_python(LEFT_OPEN)
        await parent.sh("while [ ! -e /home/user/is-open ]; do sleep 0.1; done")
        with pytest.raises(PaddockError, match="home/user/gone"):
            await family.fork(parent)
        assert (await parent.sh("echo lives")).text == "lives"
        await holder.kill()
        await holder.aclose()
        child = await family.fork(parent)
        assert (await child.sh("echo lives")).text == "lives"

    play(sandboxes, test)


@pytest.mark.parametrize("damage", ["kernel", "pages", "memory", "about"])
def test_a_state_that_is_not_whole_or_not_ours_is_refused(sandboxes: MemoryHarness, damage: str) -> None:
    async def test(family: Family) -> None:
        parent = await family.begin()
        plan = await family.copied(parent)
        await asyncio.to_thread(_damage, sandboxes, plan.tree, damage)
        with pytest.raises(PaddockError):
            await family.create(plan)
        assert (await parent.sh("echo lives")).text == "lives"

    play(sandboxes, test)


def _damage(sandboxes: MemoryHarness, tree: str, name: str) -> None:
    fd = sandboxes.pool.open(tree)
    try:
        file = Path(f"/proc/self/fd/{fd}/root/.frozen/{name}")
        if name == "memory":
            os.truncate(file, 4096)
        else:
            file.write_bytes(file.read_bytes()[:-1] + b" ")
    finally:
        os.close(fd)


def test_a_copy_of_another_shape_goes_on_with_its_files(sandboxes: MemoryHarness) -> None:
    async def test(family: Family) -> None:
        parent = await family.begin()
        await parent.start("sleep", "98765", background=True)
        await parent.sh("echo kept >/home/user/kept")
        other = replace(parent.plan.spec, limits=Limits(open_files=512))
        child = await family.create(await family.copied(parent, spec=other))
        assert (await child.sh("cat /home/user/kept; ulimit -n")).text == "kept\n512"
        assert await child.matching("98765") == []
        assert isinstance(child.instance, VmmInstance)
        said = (await (await child.instance.control()).call("log", dict))["log"]
        assert "only the files go on" in said

    play(sandboxes, test)


def test_files_that_go_on_without_their_memory_do_not_meet_it_again(sandboxes: MemoryHarness) -> None:
    async def test(family: Family) -> None:
        if not family.backend.capabilities.exits:
            pytest.skip("there are no exits here")
        parent = await family.begin()
        await parent.start("sleep", "98765", background=True)
        without = await family.create(await family.copied(parent, exits=True))
        await without.sh("echo later >/home/user/later")
        again = await family.create(await family.copied(without, exits=False))
        assert (await again.sh("cat /home/user/later")).text == "later"
        for box, expected in ((parent, 1), (without, 0), (again, 0)):
            assert len(await box.matching("98765")) == expected

    play(sandboxes, test)


def test_of_copies_that_are_taken_at_once_each_is_whole(sandboxes: MemoryHarness) -> None:
    async def test(family: Family) -> None:
        parent = await family.begin()
        await parent.start("sleep", "98765", background=True)
        for plan in await asyncio.gather(*(family.copied(parent) for _ in range(3))):
            assert len(await (await family.create(plan)).matching("98765")) == 1

    play(sandboxes, test)


def test_a_way_out_is_not_given_later(sandboxes: MemoryHarness) -> None:
    async def test(family: Family) -> None:
        box = await family.begin()
        with pytest.raises(UnsupportedError, match="create it with a policy"):
            await family.backend.exits(box.instance.id, 0, make=True)

    play(sandboxes, test)


class TestSeal:
    """Whoever loads a state believes all that is in it: only what was saved here is loaded."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        saved = SavedState(str(tmp_path), "a", KEY)
        files = saved.new_files()
        for fd in files:
            os.write(fd, b"written")
        saved.conclude(files)
        for fd in files:
            os.close(fd)
        return tmp_path

    def _opened(self, place: Path, stamp: str = "a", key: bytes = KEY) -> int:
        """How many files there are."""
        files = SavedState(str(place), stamp, key).open()
        for fd in files:
            os.close(fd)
        return len(files)

    def test_what_was_saved_here_is_found_and_forgotten(self, place: Path) -> None:
        assert self._opened(place) == 3
        saved = SavedState(str(place), "a", KEY)
        assert saved.exists()
        saved.forget()
        assert not saved.exists()
        assert os.listdir(place) == []

    @pytest.mark.parametrize("name", ["kernel", "pages"])
    def test_a_file_that_has_changed_is_refused(self, place: Path, name: str) -> None:
        (place / name).write_bytes(b"Written")
        with pytest.raises(ValueError, match="changed since"):
            self._opened(place)

    def test_a_stamp_that_has_changed_is_refused(self, place: Path) -> None:
        about = place / "about"
        about.write_bytes(about.read_bytes().replace(b'"a"', b'"b"'))
        with pytest.raises(ValueError, match="changed since"):
            self._opened(place, stamp="b")

    def test_another_key_is_refused(self, place: Path) -> None:
        with pytest.raises(ValueError, match="not saved by a sandbox of this state directory"):
            self._opened(place, key=b"K" * 32)

    def test_another_shape_is_refused(self, place: Path) -> None:
        with pytest.raises(ValueError, match="saved by a, and this is b"):
            self._opened(place, stamp="b")

    def test_a_link_in_its_place_leads_nowhere(self, place: Path, tmp_path: Path) -> None:
        link = tmp_path / "link"
        link.symlink_to(place)
        saved = SavedState(str(link), "a", KEY)
        assert not saved.exists()
        saved.forget()
        assert self._opened(place) == 3
        for fd in saved.new_files():
            os.close(fd)
        assert not link.is_symlink()
        assert self._opened(place) == 3

    def test_a_pipe_that_nobody_writes_keeps_nobody_waiting(self, place: Path) -> None:
        (place / "about").unlink()
        os.mkfifo(place / "about")
        assert SavedState(str(place), "a", KEY).exists()
        with pytest.raises(ValueError, match="no memory of a sandbox"):
            self._opened(place)

    @pytest.mark.parametrize("words", ["[]", "{}", '{"stamp": "a"}', "1"])
    def test_what_is_no_state_is_said_to_be_none(self, place: Path, words: str) -> None:
        (place / "about").write_text(words)
        with pytest.raises(ValueError, match="no memory of a sandbox"):
            SavedState(str(place), "a", KEY).of()

    def test_a_link_is_not_followed(self, place: Path, tmp_path: Path) -> None:
        (place / "memory").rename(place / "elsewhere")
        (place / "memory").symlink_to("elsewhere")
        with pytest.raises(OSError, match="symbolic links"):
            self._opened(place)
