"""A container at rest: stopped by its pid 1, which goes on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from paddock.backends.container import _running
from paddock.backends.container._records import Record, Records
from paddock.errors import SandboxError
from paddock.linux import proc
from paddock.model import SandboxId, Template, User
from tests.backends.containers import ContainerHarness
from tests.backends.test_container_engine import backend_of, boxed
from tests.conformance import eventually

_BREEDING = """
import os, subprocess, threading
def spawn():
    while True: subprocess.run(["true"])
for _ in range(4): threading.Thread(target=spawn).start()
while True:
    if not os.fork(): os._exit(0)
    os.waitpid(-1, os.WNOHANG)
"""


def test_whoever_is_being_born_stands_too_and_pid_1_does_not(containers: ContainerHarness) -> None:
    async def main() -> None:
        async with boxed(containers) as (backend, box):
            for user in (None, "root"):
                await box.start("python3", "-c", _BREEDING, background=True, user=user)
            record = backend.records.read(box.plan.id)
            assert record is not None
            for _ in range(20):
                await box.instance.pause()
                before = {pid: proc.status(pid)["Name"] for pid in proc.descendants(record.pid)}
                assert [pid for pid in before if not proc.stands(pid)] == []
                assert not proc.stands(record.pid)
                assert {pid: proc.status(pid)["Name"] for pid in proc.descendants(record.pid)} == before
                await box.instance.resume()
                assert (await box.run("echo", "awake")).text == "awake"

    asyncio.run(main())


def test_an_answer_of_pid_1_is_not_believed(containers: ContainerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with boxed(containers) as (_, box):
            with monkeypatch.context() as patch:
                patch.setattr(_running, "stands_still", lambda record: False)
                with pytest.raises(SandboxError, match="not all of the sandbox stands still"):
                    await box.instance.pause()
            await box.instance.resume()

    asyncio.run(main())


def test_of_a_service_that_is_gone_nothing_is_kept_awake_and_others_are_told(containers: ContainerHarness) -> None:
    async def main() -> None:
        async with boxed(containers, idle_seconds=1.0) as (backend, box), backend_of(containers) as other:
            other_one = await other.adopt(box.plan.id)
            assert other_one is not None
            await other_one.stay_awake()
            let_go = await box.instance.stay_awake()
            let_go()
            await asyncio.to_thread(lambda: None)
            assert not box.instance.pause_clock.now
            await other_one.aclose()
            await other.aclose()

            async def told() -> bool:
                return box.instance.pause_clock.now

            await eventually("it is told", told)
            assert (await backend.state()).paused.keys() == {box.plan.id}

    asyncio.run(main())


def test_what_an_engine_has_paused_is_seen_and_goes_on(containers: ContainerHarness) -> None:
    async def main() -> None:
        async with boxed(containers) as (backend, box):
            record = backend.records.read(box.plan.id)
            assert record is not None
            engine = await backend._open()  # pyright: ignore[reportPrivateUsage]
            if os.getuid() and not backend._limits():  # pyright: ignore[reportPrivateUsage]
                pytest.skip("without control groups this engine cannot pause")
            await engine.post(f"/containers/{record.container}/pause")
            assert _running.is_frozen(record)
            assert (await backend.state()).paused.keys() == {box.plan.id}
            await box.instance.resume()
            assert (await backend.state()).paused == {}
            assert (await box.run("echo", "awake")).text == "awake"

    asyncio.run(main())


def test_a_record_has_it_end_when_its_pid_1_does_at_the_latest(tmp_path: Path) -> None:
    """One that ends by that deadline would seem to have ended before it."""
    records, now = Records(tmp_path), proc.boottime()
    user = User(name="user", uid=1000, gid=1000, home="/home/user")
    record = Record(
        id=SandboxId("sb_1"),
        instance_id=1,
        deadline=now + 100,
        retention_seconds=60.0,
        template=Template(
            name="host", digest="", layers=(), host_usr=True, users=(user,), default_user="user", workdir="/", env={}
        ),
        boot=proc.boot_id(),
    )
    records.make(record)
    noted = records.note_times(record.id, 1, 99.0, now + 59.5)
    assert noted is not None
    assert noted.deadline == now + 59.5
    later = records.note_times(record.id, 1, 99.0, now + 1e9)
    assert later is not None
    assert later.deadline == now + 59.5, "what it says afterwards moves nothing"
