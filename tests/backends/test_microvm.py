"""Virtual machines: a fork goes on where its parent stood, with processes, memory, connections and files."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from paddock.errors import PaddockError
from paddock.model import Limit, Mount
from paddock.storage.pool.memories import Memories
from tests.backends.microvms import Family, MicrovmHarness, play
from tests.backends.test_waiting import Room, state_of
from tests.backends.test_waiting_trees import Desk
from tests.conformance import AdoptionConformance, eventually
from tests.conformance._box import Box

pytestmark = pytest.mark.timeout(900)  # a machine that is emulated, and the first is baked

SECONDS = 300
# Holds a number in memory, a connection with itself, and a file whose end is nowhere but in memory; says what it has
# when asked by a second line of input through a fifo.
LIVE = """
import os, resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))
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


class TestAdoption(AdoptionConformance):
    """The whole contract is checked in test_microvm_conformance."""

    @pytest.fixture
    def harness(self, microvms: MicrovmHarness) -> MicrovmHarness:
        return microvms


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
        limits = (await child.sh(f"grep 'open files' /proc/{pid}/limits")).text.split()
        assert limits[3:5] == ["64", "128"], "what it has lowered for itself is raised by nobody"
        assert await _ask(parent, "c") == (2, pid, "a,c,")
        grandchild = await family.fork(child)
        assert await _ask(grandchild, "d") == (3, pid, "a,b,d,")
        assert await _ask(child, "e") == (3, pid, "a,b,e,")
        own = ("cat", "/proc/sys/kernel/hostname", "/etc/machine-id", "/sys/class/net/eth0/address")
        told = [(await box.run(*own)).text.split() for box in (parent, child, grandchild)]
        assert [len(set(one)) for one in zip(*told, strict=True)] == [3, 3, 3], told
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


def _shorten(family: Family, tree: str) -> None:
    """The memory that this tree leans on."""
    pool = family.harness.pool
    fd = pool.open(Memories(pool).leans_on(tree)[-1])
    try:
        os.chmod(f"/proc/self/fd/{fd}/root/vm/ram", 0o600)
        os.truncate(f"/proc/self/fd/{fd}/root/vm/ram", 1 << 20)
    finally:
        os.close(fd)


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
                _shorten(family, plan.tree)
            elif damage == "gone":
                (place / "state").unlink()
            else:
                (place / "moment").write_bytes((place / "moment").read_bytes().replace(b"QEMU 7", b"QEMU 6"))
        finally:
            os.close(fd)
        words = {"short": "memory of the machine", "gone": "state", "foreign": "was saved by QEMU 6"}[damage]
        with pytest.raises(PaddockError, match=words):
            await family.create(plan)
        assert (await parent.sh("echo lives")).text == "lives"

    play(microvms, test)


def test_a_copy_is_named_anew_in_files_of_any_length(microvms: MicrovmHarness) -> None:
    async def test(family: Family) -> None:
        parent = await family.begin()
        spoil = "printf '%0100d' 0 > /etc/machine-id; printf '192.0.2.7 kept' >> /etc/hosts"
        assert (await parent.sh(spoil, user="root")).text == ""
        child = await family.fork(parent)
        told = (await child.sh("cat /etc/machine-id; wc -c < /etc/machine-id; cat /etc/hosts")).text.split("\n")
        assert len(told[0]) == 32
        assert told[1] == "33"
        assert told[-2:] == ["192.0.2.7 kept", f"127.0.0.1\t{child.plan.hostname}\t# this sandbox"]
        assert sum("this sandbox" in line for line in told) == 1

    play(microvms, test)


HOG = "x = []\nwhile True: x.append(bytearray(b'x') * (1 << 20))"
FORKS = """
import os, signal, time
children = []
try:
    while True:
        child = os.fork()
        if not child: time.sleep(600)
        children.append(child)
except OSError:
    for child in children: os.kill(child, signal.SIGKILL)
    for child in children: os.waitpid(child, 0)
    raise SystemExit(1)
"""
FILL = """
import errno, os
file, step, at = os.open("/home/user/fill", os.O_CREAT | os.O_WRONLY), 1 << 28, 0
while step >= 4096:
    try: os.posix_fallocate(file, at, step); at += step
    except OSError as error:
        assert error.errno == errno.ENOSPC
        step //= 2
raise SystemExit(1)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_struck_a_command_is_told_as_far_as_its_machine_knows(microvms: MicrovmHarness) -> None:
    async def test(family: Family) -> None:
        box = await family.begin()
        for program, limit in ((HOG, Limit.MEMORY), (FORKS, Limit.PROCESSES), (FILL, Limit.DISK)):
            status = (await box.python(program)).status
            assert (status.exit_code != 0, status.limit) == (True, limit)
            await box.sh("rm -f /home/user/fill")

        async def over() -> bool:
            return (await box.sh("exit 3")).status.limit is None

        await eventually("it is not told of what failed otherwise", over)  # ext4 frees blocks when it commits

    play(microvms, test)


def test_a_machine_that_waited_is_the_sandboxes_own(microvms: MicrovmHarness) -> None:
    facts = "hostname; echo $A $HOME; cat /etc/machine-id; ulimit -n; whoami"

    async def main() -> None:
        room = Room(microvms, microvms.backend())
        try:
            plan = await room.plan(env={"A": "1"})
            fresh = Box(await room.create(plan), plan)
            first = (await fresh.sh(facts)).text.split()
            pid = state_of(room, await room.stock())["pid"]
            plan = await room.plan(env={"A": "2", "HOME": "/nowhere"})
            waited = Box(await room.create(plan), plan)
            assert state_of(room, plan.id)["pid"] == pid, "it was not started"
            second = (await waited.sh(facts)).text.split()
            assert second[:3] == [plan.hostname, "2", "/home/user"]
            assert second[3] != first[3], "no two have one machine id"
            assert second[4:] == first[4:]
            async with waited.instance.frozen():
                pass
            assert (await waited.sh("echo on")).text == "on"
        finally:
            await room.close()

    asyncio.run(main())


def test_a_machine_that_waited_is_over_a_workspace_and_a_directory(microvms: MicrovmHarness, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("host")

    async def main() -> None:
        desk = Desk(microvms, microvms.backend())
        workspace = desk.workspace()
        try:
            pid = state_of(desk, await desk.stock())["pid"]
            desk.backend.waiting.count = 0
            mounts = (Mount(source=str(tmp_path), target="/mnt/directory"),)
            plan = await desk.over(
                workspace, "/workspace/none", "/mnt/directory/file", "/home/user/none", mounts=mounts
            )
            waited = Box(await desk.create(plan), plan)
            assert state_of(desk, plan.id)["pid"] == pid, "it was not started"
            assert (await waited.sh("pwd; echo good > /workspace/file; cat file")).text == "/workspace\ngood"
            async with waited.instance.frozen():
                pass
            kept = "cd /mnt/directory; echo bad 2>/dev/null > file; echo new > other; cat file other"
            assert (await waited.sh(f"cat file; {kept}")).text == "good\nhostnew"
            tree = microvms.pool.open(workspace)
            try:
                assert os.stat("root/file", dir_fd=tree).st_size == 5
            finally:
                os.close(tree)
        finally:
            await desk.close()
            microvms.pool.delete(workspace)

    asyncio.run(main())
