"""The n-th system call of a jail's start fails, for every n: there is no sandbox, or one that is isolated as any."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from paddock.backends import Instance
from paddock.backends.guest import _program
from paddock.errors import PaddockError
from paddock.linux.descriptors import closing
from paddock.supervisor import layout
from paddock.wire.guest import Setup, Spawn, Spawned
from tests.native.driver import build_module
from tests.orphans import PATIENCE_SECONDS, wait_until
from tests.supervisor.conftest import Yard, run
from tests.supervisor.test_jail import children, fresh_state, supervisor_pid

pytestmark = pytest.mark.root
Play = Callable[[Callable[[Yard], Any]], Any]
STEP = 9
SUPERVISOR = 7  # as native/jail.h has it
MOST = 180
"""More calls than a jail makes from the clone to its first command."""
CALLS = 10
"""More calls than the spawner makes from one order to the next."""
SHOWS = r"""
grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp:)' /proc/self/status
grep -v 'resident set' /proc/self/limits
cut -d' ' -f5,6 /proc/self/mountinfo
cat /proc/self/uid_map /proc/self/gid_map /proc/self/oom_score_adj /proc/sys/kernel/hostname
cat /proc/sys/user/* /proc/sys/kernel/sem /proc/sys/kernel/shmmni /proc/sys/fs/mqueue/*
cat /proc/net/dev | cut -d: -f1; find /dev /sys; nproc; grep MemTotal /proc/meminfo; umask; pwd
"""


@pytest.fixture(scope="module", autouse=True)
def faulty() -> Generator[Path]:
    program = build_module().build(sanitize=True, faults=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_program, "shipped", lambda: program)
        patch.setenv("ASAN_OPTIONS", "detect_leaks=0")
        yield program


async def shown(instance: Instance) -> bytes:
    """What isolates a command, as it sees that."""
    status, said = await run(instance, "sh", "-c", SHOWS)
    assert status.code == 0, said
    return said


async def fail_each(yard: Yard, state_dir: Path, numbers: Sequence[int], error: int, whose: str = "call") -> None:
    whole = await yard.create()
    expected = await shown(whole)
    await whole.kill()
    failed = 0
    for number in numbers:
        yard.backend.fault = f"{whose} {number} {error}"
        plan = yard.plan()
        try:
            instance = await yard.backend.create(plan)
        except PaddockError:
            failed += 1
            assert fresh_state(state_dir) == set()
            yard.pool.delete(plan.tree)
            continue
        with contextlib.suppress(PaddockError):  # a call of its agent's fails: what was asked for is refused
            assert await shown(instance) == expected, f"without call {number}"
        await instance.kill()
    assert failed > len(numbers) // 4
    yard.backend.fault = ""
    last = await yard.create()
    assert await shown(last) == expected
    await last.kill()
    expected_children = 1 + layout.DEFAULT_SPARES  # the spawner, and spares
    supervisor = supervisor_pid(yard)
    assert await asyncio.to_thread(wait_until, lambda: len(children(supervisor)) <= expected_children)


@pytest.mark.parametrize("error", [errno.ENOMEM, errno.EIO], ids=lambda number: errno.errorcode[number])
def test_a_jail_is_whole_or_not_there_if_a_system_call_of_its_start_fails(
    error: int, play: Play, module_state: Path
) -> None:
    play(lambda yard: fail_each(yard, module_state, range(1 + error % STEP, MOST, STEP), error))


@pytest.mark.slow
@pytest.mark.parametrize("error", [errno.ENOMEM, errno.EIO, errno.EPERM], ids=lambda number: errno.errorcode[number])
def test_a_jail_is_whole_or_not_there_if_any_system_call_of_its_start_fails(
    error: int, play: Play, module_state: Path
) -> None:
    play(lambda yard: fail_each(yard, module_state, range(1, MOST), error))


@pytest.mark.parametrize(
    "error",
    [errno.ENOMEM, pytest.param(errno.EPERM, marks=pytest.mark.slow)],
    ids=lambda number: errno.errorcode[number],
)
def test_a_jail_is_whole_or_not_there_if_a_system_call_of_the_spawner_fails(
    error: int, play: Play, module_state: Path
) -> None:
    """Its answer may be lost with it: then the supervisor ends too, and the next one makes the jail."""
    play(lambda yard: fail_each(yard, module_state, range(1, CALLS), error, "spawner"))


def test_a_spawner_answers_or_ends_if_a_system_call_of_its_start_fails(faulty: Path) -> None:
    answered = [number for number in range(1, 20) if answers(faulty, number)]
    assert len(answered) < 19
    assert answered[-1] == 19, "its start makes fewer calls"


def answers(program: Path, number: int) -> bool:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, closing(os.open("/proc/self/ns/uts", os.O_RDONLY)) as namespace:
        above = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 64)
        actions = [(os.POSIX_SPAWN_DUP2, above, SUPERVISOR), (os.POSIX_SPAWN_CLOSE, above)]
        argv, env = [f"spawner {number} {errno.ENOMEM}"], {"ASAN_OPTIONS": "detect_leaks=0"}
        pid = os.posix_spawn(program, argv, env, file_actions=actions)
        os.close(above)
        theirs.close()
        ours.settimeout(PATIENCE_SECONDS)
        with contextlib.suppress(ConnectionError):
            socket.send_fds(ours, [Setup(ids=b"0 0 1", stage=b"/", dev=b"/dev").pack()], [namespace])
            ours.send(Spawn().pack())  # without its descriptors
        try:
            answer = ours.recv(64)
        except ConnectionResetError:
            answer = b""
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in (0, 125)
    assert not answer or Spawned.unpack(answer).errno == errno.EBADF
    return bool(answer)
