"""The level `gvisor` keeps the promises of a backend, and what is its own: two walls, of which each holds by itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paddock.backends import SandboxPlan
from paddock.backends.gvisor import GvisorBackend, _probe, _trial
from paddock.backends.jail._instance import JailInstance
from paddock.backends.vmm import VmmInstance
from paddock.errors import LevelUnavailableError, SandboxDiedError, UnsupportedError
from paddock.linux import files, proc, processes
from paddock.model import Limits, PtySize
from tests.backends.spares import settled
from tests.backends.test_vmm import output
from tests.backends.test_waiting import Room, state_of
from tests.backends.vmms import VmmHarness, furnished
from tests.conformance import (
    AdoptionConformance,
    ArchiveConformance,
    BackendConformance,
    Bench,
    Box,
    ExecConformance,
    KillConformance,
    Lab,
    LifeConformance,
    LimitConformance,
    MountConformance,
    eventually,
)
from tests.conftest import configure, private_state


class GvisorHarness(VmmHarness):
    def backend(self) -> GvisorBackend:
        return GvisorBackend(self.state_dir, supervisor=self.supervisor)


@pytest.fixture(scope="module")
def sandboxes() -> Generator[GvisorHarness]:
    with private_state() as state_dir, furnished(state_dir) as (pool, templates):
        yield GvisorHarness(state_dir, pool, templates)


class _InGvisor(Bench):
    @pytest.fixture
    def harness(self, sandboxes: GvisorHarness) -> GvisorHarness:
        reason = GvisorBackend(sandboxes.state_dir).probe()
        if reason is not None:
            pytest.skip(f"no gVisor here: {reason}")
        return sandboxes


class TestGvisor(_InGvisor, KillConformance, LifeConformance, MountConformance):
    """What depends on the isolation. The guest agent is proved at the jail: tests/contract/test_jail_backend.py."""

    @pytest.mark.parametrize(
        "script",
        [
            "ls -l / 2>denied && ln -s denied link && ls -l . /usr && stat / /etc/passwd",
            "git init -q -b main . && echo a >file && git add file && git status --short && git -c user.name=a "
            "-c user.email=a@b commit -qm one && git log --oneline",
            "python3 -m venv --without-pip it && it/bin/python -c 'import json, ssl' && "
            "if python3 -c 'import pip'; then python3 -m pip --version; fi",
        ],
        ids=["coreutils", "git", "python"],
    )
    def test_ordinary_programs_work(self, lab: Lab, script: str) -> None:
        _probe_or_skip(lab)

        async def test() -> None:
            box = await lab.box()
            done = await box.sh(script)
            assert (done.status.code, done.err) == (0, b"")

        lab.run(test())


@pytest.mark.both
class TestWithoutRoot(_InGvisor, AdoptionConformance, LimitConformance):
    """What depends on control groups, and on who may look after another's processes."""


@pytest.mark.slow
class TestEveryPromise(_InGvisor, BackendConformance):
    """With all that the guest does."""


@pytest.mark.both
class TestWalls(_InGvisor):
    def test_the_environment_of_the_host_is_nowhere_inside(self, lab: Lab) -> None:
        ExecConformance.test_the_environment_of_the_host_is_nowhere_inside(self, lab)

    def test_an_archive_is_not_written_through_a_link(self, lab: Lab) -> None:
        """gVisor follows one where it must not: `guest._paths.open_directory`."""
        ArchiveConformance.test_nothing_is_written_through_a_link_that_was_there_before(self, lab)

    def test_programs_see_a_kernel_that_is_not_the_machines(self, lab: Lab) -> None:
        async def test() -> None:
            release = (await (await lab.box()).run("uname", "-r")).text
            assert release
            assert release != os.uname().release

        lab.run(test())

    def test_the_sentry_has_no_capability_and_nobodys_id_and_all_are_filtered(self, lab: Lab) -> None:
        async def test() -> None:
            family = _family(lab, await lab.box())
            (sentry,) = (one for one in family if b"boot" in one.argv)
            (gofer,) = (one for one in family if b"gofer" in one.argv)
            assert int(proc.status(sentry.pid)["CapEff"], 16) == int(proc.status(sentry.pid)["CapPrm"], 16) == 0
            assert all(proc.status(one.pid)["NoNewPrivs"] == "1" and one.filtered for one in (sentry, gofer))
            if os.getuid() == 0:
                assert (sentry.uid, gofer.uid) == (family[0].uid + 65534, family[0].uid)

        lab.run(test())

    @pytest.mark.parametrize("half", ["boot", "gofer"])
    def test_what_is_killed_of_it_ends_the_sandbox(self, lab: Lab, half: str) -> None:
        async def test() -> None:
            box = await lab.box()
            family = _family(lab, box)
            (victim,) = (one for one in family if half.encode() in one.argv)
            started = {one.pid: proc.start_time(one.pid) for one in family}
            os.kill(victim.pid, signal.SIGKILL)
            ending = await box.instance.wait_ended()
            assert "gvisor" in ending.reason
            with pytest.raises(SandboxDiedError):
                await box.run("true")
            await eventually("nothing of it is left", lambda: _none(started))

        lab.run(test())

    def test_a_daemon_without_the_variable_of_its_command_is_killed_with_it(self, lab: Lab) -> None:
        async def test() -> None:
            box = await lab.box()
            idle = f"python3 -I -S -c 'import time; time.sleep(600)' {lab.marker}"
            daemon = await box.start("sh", "-c", f"(env -i PATH=$PATH setsid {idle} >/dev/null 2>&1 &); exec sleep 600")
            await eventually("it runs", lambda: box.matching(lab.marker))
            await daemon.kill()

            async def gone() -> bool:
                return not await box.matching(lab.marker)

            await eventually("it is gone", gone)
            await daemon.aclose()

        lab.run(test())

    def test_a_terminal_that_is_none_is_refused(self, lab: Lab) -> None:
        async def test() -> None:
            box = await lab.box()
            if lab.capabilities.pty:
                pytest.skip("this version of runsc has terminals")
            with pytest.raises(UnsupportedError, match="terminals"):
                await box.start("sh", pty=PtySize(rows=24, columns=80))

        lab.run(test())

    def test_root_inside_has_no_way_to_change_its_root(self, lab: Lab) -> None:
        async def test() -> None:
            box = await lab.box()
            if not lab.capabilities.root_user:
                pytest.skip("there is no root inside for an ordinary user's sandboxes")
            tried = (
                "import os\ntry: os.chroot('/tmp')\nexcept OSError as error: print(error.errno)\nelse: print('done')"
            )
            assert (await box.python(tried, user="root")).text == "1"

        lab.run(test())

    @pytest.mark.skipif(os.uname().machine != "x86_64", reason="the instruction is this architecture's")
    def test_what_the_processor_is_programs_ask_itself(self, lab: Lab) -> None:
        """And not the sentry, by a fault each time: that was a third of what a short command cost."""

        async def test() -> None:
            here = subprocess.run(["python3", "-c", _WHO_MADE_IT], check=True, capture_output=True, text=True)  # noqa: ASYNC221 - at once
            assert (await (await lab.box()).python(_WHO_MADE_IT)).text == here.stdout.strip()

        lab.run(test())

    def test_there_are_no_extended_attributes(self, lab: Lab) -> None:
        async def test() -> None:
            tried = (
                "import errno, os\nopen('file', 'w').close()\n"
                "try: os.setxattr('file', 'user.a', b'1')\n"
                "except OSError as error: print(errno.errorcode[error.errno])"
            )
            assert (await (await lab.box()).python(tried)).text == "ENOTSUP"

        lab.run(test())

    def test_a_small_disk_does_not_make_the_memory_small(self, lab: Lab) -> None:
        async def test() -> None:
            box = await lab.box(limits=Limits(disk_mib=64, memory_mib=512))
            assert (await box.python("print(len(bytearray(b'x' * (200 << 20))))")).text == str(200 << 20)
            assert (await box.sh("head -c 100000000 /dev/zero >big")).status.code != 0

        lab.run(test())

    def test_forks_of_an_idle_program_are_refused_before_memory_runs_out(self, lab: Lab) -> None:
        async def test() -> None:
            box = await lab.box(limits=Limits(memory_mib=512, processes=512))
            bomb = await box.python(_FORKS_UNTIL_REFUSED)
            assert bomb.text.split()[:1] == ["EAGAIN"], bomb
            assert bomb.text.split()[1:] == ["again"]
            assert (await box.sh("echo alive")).text == "alive"

        lab.run(test())


# cpuid(0x40000000), of which the sentry knows nothing: push rbx; mov eax, edi; xor ecx, ecx; cpuid; mov [rsi], eax ...
_WHO_MADE_IT = """
import ctypes, mmap
code = bytes.fromhex("5389f831c90fa28906895e04894e0889560c5bc3")
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code)
words = (ctypes.c_uint32 * 4)()
call = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_void_p)
call(ctypes.addressof(ctypes.c_char.from_buffer(page)))(0x40000000, ctypes.addressof(words))
print(*words)
"""

# Each of its copies takes ten times what it would take on Linux: 500 of them are more than the sandbox may have.
_FORKS_UNTIL_REFUSED = """
import asyncio, errno, multiprocessing, os, signal, time
children = []
try:
    while len(children) < 500:
        child = os.fork()
        if not child:
            signal.pause()
        children.append(child)
except OSError as error:
    print(errno.errorcode[error.errno], flush=True)
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
while True:
    try:
        child = os.fork()
    except BlockingIOError:
        time.sleep(0.1)
    else:
        break
if not child:
    os._exit(0)
os.waitpid(child, 0)
print("again")
"""

# The soft limit of processes follows the memory that is free.
_FACTS = """
grep -E 'Cap|Seccomp|NoNewPrivs' /proc/self/status
cat /proc/[0-9]*/status | grep CapEff | sort -u
env | grep -v =ex_ | sort
id; pwd
for one in n Hp f c; do ulimit -$one; done
"""


class _Listening(GvisorBackend):
    """Asks what waits for its name when it has rehearsed."""

    heard: tuple[bytes, ...] = ()

    async def rehearse(self, plan: SandboxPlan, instance: VmmInstance) -> None:
        await super().rehearse(plan, instance)
        self.heard += (await output(instance, "hostname"),)


@pytest.mark.both
def test_what_waits_has_been_renewed_once(sandboxes: GvisorHarness) -> None:
    """So its init has its memory at hand when it becomes a sandbox."""
    backend = _Listening(sandboxes.state_dir)
    reason = backend.probe()
    if reason is not None:
        pytest.skip(f"no gVisor here: {reason}")

    async def main() -> None:
        room = Room(sandboxes, backend)
        try:
            await room.stock()
            assert backend.heard == (b"waiting\n",)
        finally:
            await room.close()

    asyncio.run(main())


@pytest.mark.both
def test_one_that_waited_is_as_one_that_was_started(sandboxes: GvisorHarness) -> None:
    reason = GvisorBackend(sandboxes.state_dir).probe()
    if reason is not None:
        pytest.skip(f"no gVisor here: {reason}")

    async def main() -> None:
        backend = sandboxes.backend()
        room = Room(sandboxes, backend)
        try:
            plan = await room.plan(env={"A": "1"})
            fresh = Box(await room.create(plan), plan)
            await settled(room.backend.waiting)
            pid = state_of(room, *room.waiting())["pid"]
            plan = await room.plan(env={"A": "1"})
            waited = Box(await room.create(plan), plan)
            assert state_of(room, plan.id)["pid"] == pid
            for user in (None, "root") if backend.root_user else (None,):
                facts = [(await box.sh(_FACTS, user=user)).text for box in (fresh, waited)]
                assert "A=1" in facts[0]
                assert facts[0] == facts[1]
                renamed = await waited.python(_RENAME, user=user)
                assert renamed.text == f"{plan.hostname} EPERM", "it has its name, and nobody inside gives it another"
            walls = [[(one.name, one.status) for one in await box.instance.posture()] for box in (fresh, waited)]
            assert walls[0] == walls[1]
        finally:
            await room.close()

    asyncio.run(main())


_RENAME = (
    "import errno, socket\nname = socket.gethostname()\n"
    "try: socket.sethostname('other')\nexcept OSError as error: print(name, errno.errorcode[error.errno])"
)


@pytest.mark.both
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo runsc version release-20200101.0", "20221219 or later is needed"),
        ("echo something else", "version unknown"),
        ('case $1 in --version) echo runsc version 0.0~20991231.0;; *) echo broken >&2; exit 3;; esac', "broken"),
    ],
)  # fmt: skip
def test_a_runsc_that_does_not_do_is_refused_with_the_reason(tmp_path: Path, script: str, reason: str) -> None:
    program = tmp_path / "runsc"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    configure(tmp_path, runsc=str(program))
    found = _probe.look(tmp_path)
    assert isinstance(found, str)
    assert reason in found
    assert _probe.remembered(tmp_path) is None


@pytest.mark.both
def test_the_first_runsc_that_runs_a_program_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked, own = tmp_path / "later" / "runsc", tmp_path / "bin" / "runsc"
    for program in (unpacked, own):
        program.parent.mkdir()
        program.write_text("#!/bin/sh\necho runsc version 0.0~20991231.0\n")
        program.chmod(0o755)
    monkeypatch.setattr(_probe, "UNPACKED", unpacked)
    monkeypatch.setattr(files, "_PROGRAMS", str(own.parent))
    runs: dict[Path, dict[str, bool] | str] = {unpacked: "no", own: "no"}
    monkeypatch.setattr(_trial, "attempt", lambda runsc, platform, date: runs[runsc])  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert "runs no program here" in str(_probe.look(tmp_path))
    works = {"terminals": True, "stats": True}
    for best in (own, unpacked):
        runs[best] = works
        found = _probe.look(tmp_path)
        assert isinstance(found, _probe.FoundRunsc)
        assert found.program == str(best)
        (tmp_path / "gvisor.json").unlink()
    _probe.look(tmp_path)
    unpacked.unlink()
    assert _probe.remembered(tmp_path) is None  # what is there has changed
    configure(tmp_path, runsc=str(own))
    assert _probe.programs(tmp_path) == (own,)


@pytest.mark.both
def test_a_runsc_in_which_ls_fails_is_said_to_be_weak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "runsc"
    program.write_text("#!/bin/sh\necho runsc version 0.0~20221219.0\n")
    program.chmod(0o755)
    configure(tmp_path, runsc=str(program))
    monkeypatch.setattr(_trial, "attempt", lambda *_: {"terminals": False, "stats": False})  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    backend = GvisorBackend(tmp_path)
    (line,) = backend.checks()
    if line.status == "missing":
        pytest.skip(line.detail)
    assert line.status == "weak"
    assert "ls and stat" in line.detail
    assert line.fix == _probe.FIX_OLD


@pytest.mark.both
def test_two_who_look_at_once_find_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as threads:
        one, other = threads.map(_probe.look, (tmp_path / "one", tmp_path / "other"))
    if isinstance(one, str) and "not installed" in one:
        pytest.skip(one)
    assert one == other
    assert isinstance(one, _probe.FoundRunsc)


@pytest.mark.both
def test_without_runsc_the_level_says_what_adds_it(tmp_path: Path, sandboxes: GvisorHarness) -> None:
    configure(tmp_path, runsc=str(tmp_path / "none"))
    backend = GvisorBackend(tmp_path)
    (line,) = backend.checks()
    assert (line.status, line.fix) == ("missing", _probe.FIX)
    assert _probe.FIX in (backend.probe() or "")

    configure(sandboxes.state_dir, runsc=str(tmp_path / "none"))
    lab = Lab(sandboxes)

    async def create() -> None:
        await lab.box()

    try:
        with pytest.raises(LevelUnavailableError, match="not installed"):
            lab.run(create())
    finally:
        configure(sandboxes.state_dir)


def _probe_or_skip(lab: Lab) -> None:
    assert isinstance(lab.backend, GvisorBackend)
    (check,) = lab.backend.checks()
    if check.status == "weak":
        pytest.skip(check.detail)


def _family(lab: Lab, box: Box) -> tuple[processes.Process, ...]:
    assert isinstance(lab.backend, GvisorBackend)
    assert isinstance(box.instance, JailInstance)
    return processes.below(box.instance.pid)


async def _none(started: dict[int, int]) -> bool:
    return not any(_lives(pid, start) for pid, start in started.items())


def _lives(pid: int, start: int) -> bool:
    try:
        return proc.start_time(pid) == start and proc.state(pid) not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
