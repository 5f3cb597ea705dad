"""A sandbox is what was planned when somebody gets it; a supervisor is there for as long as it is needed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paddock.linux import landlock, proc
from paddock.model import Limits
from paddock.supervisor import _posture, layout
from tests import orphans
from tests.supervisor.conftest import Yard, configure, run

Play = Callable[[Callable[[Yard], Any]], Any]


@pytest.mark.root
def test_a_sandbox_that_is_not_as_planned_is_not_handed_out() -> None:
    # This very process has capabilities, no filter, and every namespace of the host.
    me, root, own = os.getpid(), os.stat("/proc"), proc.namespaces()
    with pytest.raises(_posture.PostureError) as init:
        _posture.check_init(me, base=0x6000_0000, root=root, own=own)
    with pytest.raises(_posture.PostureError) as agent:
        _posture.check_agent(me, me, root=root, own=own)
    for refusal, more in ((init, ("uid 0", "net namespace")), (agent, ("system call filter", "user namespace"))):
        for wrong in ("CapEff", "gain privileges", "another root directory", *more):
            assert wrong in str(refusal.value)


def test_landlock_holds_where_a_mount_would_not(play: Play) -> None:
    if landlock.kernel_abi() < 6:
        pytest.skip(f"landlock {landlock.kernel_abi()} has no scopes for signals: Linux 6.12 has")

    async def scene(yard: Yard) -> None:
        instance = await yard.create()
        # pid 1 belongs to nobody inside; a signal to it is refused by Landlock, and no mount has a say in signals.
        status, said = await run(instance, "sh", "-c", "kill -0 1")
        assert status.code != 0
        assert b"not permitted" in said
        # An unsandboxed copy of the same uid could make devices if it had the capability; Landlock refuses the kind.
        status, said = await run(instance, "mknod", "/workspace/device", "c", "1", "3")
        assert status.code != 0
        await instance.kill()

    play(scene)


def test_all_limits_are_in_place_before_the_first_command(play: Play) -> None:
    async def scene(yard: Yard) -> None:
        plan = yard.plan(limits=Limits(open_files=333, processes=55, memory_mib=77, disk_mib=99))
        instance = await yard.backend.create(plan)
        _, said = await run(instance, "sh", "-c", "ulimit -n; ulimit -c; ulimit -f; cat /proc/self/cgroup")
        words = said.split()
        assert words[:2] == [b"333", b"0"]
        if yard.pool.usage(plan.tree) is None:  # else a quota holds, and a file may have holes
            assert int(words[2]) * 512 == 99 << 20
        if os.getuid() == 0:
            usage = await instance.usage()
            assert usage.processes is not None
            assert (await run(instance, "sh", "-c", "for i in $(seq 60); do sleep 9 & done"))[0].code != 0
        await instance.kill()

    play(scene)


def test_the_supervisor_leaves_when_nothing_is_left(private_play: Play, state_dir: Path) -> None:
    async def scene(yard: Yard) -> None:
        instance = await yard.create()
        await instance.kill()

    configure(state_dir, idle_seconds=0.5)
    private_play(scene)
    assert orphans.wait_until(lambda: not (state_dir / layout.SUPERVISOR_SOCKET).exists(), seconds=30)
