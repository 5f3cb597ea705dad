"""What the jails owes to those who wait, when spares can't be made."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from paddock.errors import SupervisorUnavailableError
from paddock.linux.undo import UndoStack
from paddock.supervisor import _context, _jail_pool, _spare
from paddock.supervisor._errors import JailError, Steps
from paddock.supervisor._jail_pool import MOST_AT_ONCE, JailPool
from tests.orphans import wait_until
from tests.supervisor.conftest import Yard, configure, run
from tests.supervisor.test_plan import plan

Play = Callable[[Callable[[Yard], Any]], Any]


def test_all_who_wait_are_answered_when_no_further_spare_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    voices: list[socket.socket] = []

    def begin(context: object, spawner: object, fault: str = "") -> _spare.Spare:
        if len(voices) == MOST_AT_ONCE:
            raise JailError("nothing is left to make it of")
        sync, voice = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sync.setblocking(False)
        voices.append(voice)
        undo = UndoStack()
        undo.push(sync.close)
        return _spare.Spare(
            pid=0, pidfd=-1, group=None, slot=None, sync=sync, name="", mounts=-1, undo=undo, steps=Steps()
        )

    monkeypatch.setattr(_spare, "begin", begin)
    monkeypatch.setattr(_jail_pool, "Spawner", lambda _: SimpleNamespace(check=lambda: None))
    handlers: dict[int, Callable[[], None]] = {}
    no_context = cast("Any", None)
    jails = JailPool(no_context, watch=handlers.__setitem__, unwatch=handlers.__delitem__, created=lambda jail: None)
    jails.open()
    answers: list[dict[str, object]] = []
    for _ in range(5 * MOST_AT_ONCE):
        jails.create(plan(), answers.append)

    for voice in voices:
        voice.send(b'{"error": "it does not become one", "errno": null, "after": "clone"}')
    for handler in list(handlers.values()):
        handler()

    assert len(answers) == 5 * MOST_AT_ONCE
    assert not jails.busy
    assert not handlers
    for voice in voices:
        voice.close()


def test_more_spares_than_one_are_made_when_it_is_quiet_and_no_more_than_are_wanted(
    private_play: Play, state_dir: Path
) -> None:
    async def scene(yard: Yard) -> None:
        await (await yard.create()).kill()
        spares = state_dir / "supervisor" / "spares"
        assert await asyncio.to_thread(wait_until, lambda: len(list(spares.iterdir())) == 3)
        burst = await asyncio.gather(*(yard.create() for _ in range(5)))
        assert len(list(spares.iterdir())) <= 3
        for instance in burst:
            assert (await run(instance, "true"))[0].code == 0
            await instance.kill()

    configure(state_dir, spares=3)
    private_play(scene)


def test_a_number_of_spares_that_is_none_is_refused(private_play: Play, state_dir: Path) -> None:
    async def scene(yard: Yard) -> None:
        await yard.create()

    configure(state_dir, spares="many")
    with pytest.raises(SupervisorUnavailableError, match="spares must be a number"):
        private_play(scene)


@pytest.mark.parametrize("seconds", [0, -1, "2", True, 1e9])
def test_a_time_of_the_supervisor_that_is_none_is_refused(seconds: object) -> None:
    with pytest.raises(ValueError, match="idle_seconds must be a number"):
        _context._seconds({"idle_seconds": seconds}, "idle_seconds", 10.0)  # pyright: ignore[reportPrivateUsage]
