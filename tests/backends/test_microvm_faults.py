"""What goes wrong while a machine is saved: a sentence each, nothing left of it, and the parent is unharmed where it
lives."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from paddock.backends.microvm import _backend
from paddock.backends.microvm._backend import MicrovmInstance
from paddock.errors import PaddockError, ResourceExhaustedError, SandboxDiedError
from paddock.linux import processes
from paddock.model import ExecId, ExecSpec, SandboxId
from paddock.storage.pool import memories
from paddock.storage.pool.memories import PREFIX, Memories
from paddock.supervisor import layout
from paddock.supervisor.records import Records
from tests.backends.microvms import Family, MicrovmHarness, play
from tests.conformance._box import Box
from tests.conformance._lab import eventually

pytestmark = pytest.mark.timeout(900)  # a machine that is emulated, and the first is baked

_PARENT = 'test "$(cat /tmp/kept)" = kept && echo lives'


def _images(family: Family) -> list[str]:
    """Of this moment: what sandboxes that have ended leant on goes with the next sweep."""
    pool = family.harness.pool
    memories = Memories(pool)
    for name in memories.lost():
        memories.drop(name)
    return [name for name in pool.names() if name.startswith(PREFIX)]


def _qemu(family: Family, box: Box) -> int:
    directory = os.open(family.harness.state_dir / layout.RUN, os.O_RDONLY | os.O_DIRECTORY)
    try:
        record = Records(directory).read(box.instance.id)
    finally:
        os.close(directory)
    assert record is not None
    (pid,) = [one.pid for one in processes.below(record.pid) if one.name.startswith(b"qemu")]
    return pid


async def _killed(family: Family, pid: int) -> None:
    """When it is about to be saved."""
    await eventually("memory is saved", lambda: _begun(family))
    os.kill(pid, signal.SIGKILL)


async def _begun(family: Family) -> bool:
    """None is dropped here: only the backend's own pool knows which one is in use."""
    return any(name.startswith(PREFIX) for name in family.harness.pool.names())


@pytest.mark.slow
def test_a_machine_that_is_killed_while_it_is_saved_leaves_no_copy(microvms: MicrovmHarness) -> None:
    async def test(family: Family) -> None:
        parent, other = await family.begin(), await family.begin()
        assert not _images(family)
        pid = _qemu(family, parent)
        os.kill(pid, signal.SIGSTOP)  # so that it does not answer, however late it is asked

        async def copy() -> None:
            async with parent.instance.frozen():
                raise AssertionError("it stands, and cannot have said so")

        with pytest.raises(SandboxDiedError, match="ended by signal 9"):
            await asyncio.gather(copy(), _killed(family, pid))
        assert (await parent.instance.wait_ended()).reason
        assert not _images(family)
        assert (await other.sh("echo lives")).text == "lives"

    play(microvms, test)


def test_a_disk_that_is_full_while_it_is_saved_fails_the_copy_alone(
    microvms: MicrovmHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(family: Family) -> None:
        parent = await family.begin()
        before = family.harness.pool.names()
        if family.harness.pool.usage(parent.plan.tree).limit_bytes is None:
            pytest.skip("nothing limits the size of a tree here")
        await parent.sh("echo kept > /tmp/kept")
        with monkeypatch.context() as context:
            context.setattr(memories, "_MORE_BYTES", (1 << 20) - (256 << 20))
            with pytest.raises(ResourceExhaustedError, match="no room"):
                await family.fork(parent)
        assert family.harness.pool.names() == before
        assert (await parent.sh(_PARENT)).text == "lives"
        child = await family.fork(parent)
        assert (await child.sh(_PARENT)).text == "lives"

    play(microvms, test)


def test_memory_that_is_gone_is_said_so(microvms: MicrovmHarness) -> None:
    async def test(family: Family) -> None:
        parent = await family.begin()
        plan = family.copy_plan(parent)
        async with parent.instance.frozen():
            family.harness.pool.snapshot(parent.plan.tree, plan.tree)
            (image,) = _images(family)
        family.harness.pool.delete(image)
        with pytest.raises(PaddockError, match=r"memory of the machine .* is gone"):
            await family.create(plan)

    play(microvms, test)


def test_a_copy_that_is_left_lets_the_machine_go_on_and_keeps_nothing(microvms: MicrovmHarness) -> None:
    async def test(family: Family) -> None:
        parent = await family.begin()
        before = family.harness.pool.names()
        await parent.sh("echo kept > /tmp/kept")
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                async with parent.instance.frozen():
                    raise ZeroDivisionError
            assert family.harness.pool.names() == before
            assert (await parent.sh(_PARENT)).text == "lives"

    play(microvms, test)


def test_a_strangers_shell_that_never_ends_keeps_no_machine_from_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine is baked once its template's shell has run; that of an image is whatever its author likes."""
    monkeypatch.setattr(_backend, "_WARM_SECONDS", 0.0)
    let_go: list[str] = []

    class Endless:
        async def wait(self) -> None:
            await asyncio.Event().wait()

        async def aclose(self) -> None:
            let_go.append("endless")

    class Stranger(MicrovmInstance):
        def __init__(self) -> None:
            self.id = SandboxId("sb_stranger")

        async def start(self, spec: ExecSpec, *, id: ExecId, background: bool) -> Any:
            return Endless()

    asyncio.run(_backend._warm(Stranger()))  # pyright: ignore[reportPrivateUsage]
    assert let_go == ["endless"]
