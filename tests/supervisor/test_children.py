"""A sandbox that belongs to another one does not outlive it, whoever is alive to see to that."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Any

import msgspec
import pytest

from paddock.errors import PaddockError, SandboxDiedError
from paddock.supervisor import layout
from tests.supervisor.conftest import Yard, open_yard


async def belonging(yard: Yard, parent: Any) -> Any:
    return await yard.backend.create(msgspec.structs.replace(yard.plan(), parent=parent.id))


@pytest.mark.parametrize("how", ["kill", "deadline", "own death"])
def test_it_ends_with_the_one_that_it_belongs_to(how: str, play: Any) -> None:
    async def scene(yard: Yard) -> None:
        outer, stranger = await yard.create(), await yard.create()
        children = [await belonging(yard, outer) for _ in range(3)]
        inner = await belonging(yard, children[0])
        match how:
            case "kill":
                await outer.kill()
            case "deadline":
                with contextlib.suppress(SandboxDiedError):  # it may be over before that is answered
                    await outer.set_deadline(0.0)
            case _:
                os.kill((await yard.backend.record(outer.id)).pid, signal.SIGKILL)
        for one in (*children, inner):
            assert "belonged to" in (await one.wait_ended()).reason
        assert stranger.id in (await yard.backend.state()).living
        assert (await yard.backend.state()).living[stranger.id] is None
        await stranger.kill()

    play(scene)


def test_one_that_comes_too_late_ends_at_once(play: Any) -> None:
    async def scene(yard: Yard) -> None:
        outer = await yard.create()
        await outer.kill()
        try:
            child = await belonging(yard, outer)
        except PaddockError:
            return
        assert "belonged to" in (await child.wait_ended()).reason

    play(scene)


def test_a_new_supervisor_ends_those_whose_outer_one_died_meanwhile(state_dir: Any) -> None:
    async def scene() -> None:
        async with open_yard(state_dir) as yard:
            outer = await yard.create()
            child = await belonging(yard, outer)
            supervisor = int(yard.backend.supervisor.facts["pid"])
            pid = (await yard.backend.record(outer.id)).pid
            os.kill(supervisor, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
            assert (state_dir / layout.RUN).exists()
            assert "belonged to" in (await child.wait_ended()).reason

    asyncio.run(scene())
