"""The n-th system call of a jail's start fails, for every n: there is no sandbox, or one that is isolated as any."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from paddock.backends import Instance
from paddock.backends.guest import _program
from paddock.errors import PaddockError
from tests.native.driver import build_module
from tests.supervisor.conftest import Yard, run
from tests.supervisor.test_jail import fresh_state

pytestmark = pytest.mark.root
Play = Callable[[Callable[[Yard], Any]], Any]
STEP = 9
MOST = 180
"""More calls than a jail makes from the clone to its first command."""
SHOWS = r"""
grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp:)' /proc/self/status
grep -v 'resident set' /proc/self/limits
cut -d' ' -f5,6 /proc/self/mountinfo
cat /proc/self/uid_map /proc/self/gid_map /proc/self/oom_score_adj /proc/sys/kernel/hostname
cat /proc/sys/user/* /proc/sys/kernel/sem /proc/sys/kernel/shmmni /proc/sys/fs/mqueue/*
cat /proc/net/dev | cut -d: -f1; find /dev /sys; nproc; grep MemTotal /proc/meminfo; umask; pwd
"""


@pytest.fixture(scope="module", autouse=True)
def faulty() -> Generator[None]:
    program = build_module().build(sanitize=True, faults=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_program, "shipped", lambda: program)
        patch.setenv("ASAN_OPTIONS", "detect_leaks=0")
        yield


async def shown(instance: Instance) -> bytes:
    """What isolates a command, as it sees that."""
    status, said = await run(instance, "sh", "-c", SHOWS)
    assert status.code == 0, said
    return said


async def fail_each(yard: Yard, state_dir: Path, numbers: Sequence[int], error: int) -> None:
    whole = await yard.create()
    expected = await shown(whole)
    await whole.kill()
    failed = 0
    for number in numbers:
        yard.backend.fault = f"call {number} {error}"
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
