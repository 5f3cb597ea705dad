"""How a container comes up, without an engine: who waits for pid 1 leaves no socket, and not all come up at once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from paddock.backends import SandboxPlan
from paddock.backends.container import ContainerBackend, _start
from paddock.backends.container._backend import _AT_ONCE  # pyright: ignore[reportPrivateUsage]
from paddock.backends.container._records import BIRTH
from paddock.errors import PlatformError
from paddock.model import SandboxId, SandboxSpec, Template, User
from tests.orphans import descriptors, wait_until


@pytest.fixture
def place() -> Generator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        (Path(directory) / BIRTH).mkdir()
        yield Path(directory)


async def _runs() -> str | None:
    return None


async def _nothing(pid: int) -> None:
    pass


async def _refuse() -> None:
    raise PlatformError("the engine has refused it")


def test_who_has_called_when_the_engine_fails_is_let_go(place: Path) -> None:
    async def main() -> None:
        with socket.socket(socket.AF_UNIX) as guest:
            before = descriptors()
            with _start.expecting(place) as guest_start:
                guest.connect(str(place / BIRTH / "birth.sock"))
                starting = asyncio.ensure_future(_refuse())
                with pytest.raises(PlatformError, match="refused it"):
                    await guest_start.call({}, _runs, _nothing, starting)
            assert wait_until(lambda: descriptors() <= before)
            with pytest.raises(ConnectionResetError):
                guest.recv(1)

    asyncio.run(main())


def test_what_has_the_descriptor_of_its_door_afterwards_is_heard(place: Path) -> None:
    """A loop that watches what was closed takes the next one of that number for watched, and never hears of it."""

    async def main() -> None:
        with _start.expecting(place) as guest_start, pytest.raises(PlatformError, match="refused it"):
            await guest_start.call({}, _runs, _nothing, asyncio.ensure_future(_refuse()))
        loop = asyncio.get_running_loop()
        pairs = [socket.socketpair() for _ in range(8)]
        heard = [asyncio.Event() for _ in pairs]
        for (ours, theirs), event in zip(pairs, heard, strict=True):
            loop.add_reader(ours, event.set)
            theirs.send(b"x")
        async with asyncio.timeout(60):
            for event in heard:
                await event.wait()
        for ours, theirs in pairs:
            assert loop.remove_reader(ours)
            ours.close()
            theirs.close()

    asyncio.run(main())


def test_no_more_are_brought_up_at_once_than_there_are_processors_for(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[SandboxId] = []
    at_work: set[SandboxId] = set()
    most: list[int] = []

    async def main() -> None:
        as_many_as_may, go_on = asyncio.Event(), asyncio.Event()

        async def make(self: ContainerBackend, plan: SandboxPlan, turn: contextlib.AsyncExitStack) -> Any:
            begun.append(plan.id)
            at_work.add(plan.id)
            most.append(len(at_work))
            if len(at_work) == _AT_ONCE:
                as_many_as_may.set()
            await go_on.wait()
            at_work.discard(plan.id)
            raise PlatformError("it was only tried")

        monkeypatch.setattr(ContainerBackend, "_make", make)
        backend = ContainerBackend(place)
        plans = [_plan(f"sb_{number}") for number in range(_AT_ONCE + 3)]
        creates = [asyncio.ensure_future(backend.create(plan)) for plan in plans]
        async with asyncio.timeout(60):
            await as_many_as_may.wait()  # whoever else might begin is as far by now
        creates[-1].cancel()  # whoever does not wait any more for its turn
        go_on.set()
        done = await asyncio.gather(*creates, return_exceptions=True)
        assert [type(one) for one in done] == [PlatformError] * (len(plans) - 1) + [asyncio.CancelledError]
        await backend.aclose()

    asyncio.run(main())
    assert max(most) == _AT_ONCE
    assert begun == [f"sb_{number}" for number in range(_AT_ONCE + 2)]


def _plan(id: str) -> SandboxPlan:
    user = User(name="user", uid=1000, gid=1000, home="/home/user")
    return SandboxPlan(
        id=SandboxId(id),
        hostname=id,
        spec=SandboxSpec(),
        template=Template(
            name="host", digest="", layers=(), host_usr=True, users=(user,), default_user="user", workdir="/", env={}
        ),
        tree=id,
        deadline=time.clock_gettime(time.CLOCK_BOOTTIME) + 60,
    )
