"""What the daemon can't hand over is undone before its caller hears of it."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import weakref
from pathlib import Path
from typing import Any

import pytest

from paddock.daemon.main import _requests
from paddock.daemon.main._requests import Requests
from paddock.daemon.main._sessions import Session
from paddock.errors import InvalidStateError
from paddock.model import (
    Action,
    CreateSandbox,
    ExecSpec,
    KillSandbox,
    ListSandboxes,
    MountDiff,
    Principal,
    SandboxId,
    StartExec,
    State,
    codec,
)
from paddock.wire import AGAIN, Frame, Kind
from tests.client.door import FakeDoor


async def _control(what: str, session: Session) -> None: ...


async def _ask(door: FakeDoor, action: Action[object]) -> list[tuple[Kind, bytes]]:
    answers: list[tuple[Kind, bytes]] = []
    requests = Requests(door, Principal("local:test"), control=_control)
    frame = Frame(Kind.OPEN, 1, codec.encode(codec.Request(action=action)))  # type: ignore[arg-type]
    await requests.answer(
        Session("0" * 32, 0, lambda session: None),
        frame,
        lambda kind, body, descriptors=(): answers.append((kind, body)),
    )
    return answers


def test_a_command_for_which_there_is_no_pipe_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> tuple[int, int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("paddock.daemon.main._handles.pipe", none)
    door = FakeDoor(tmp_path)
    ((kind, body),) = asyncio.run(_ask(door, StartExec(sandbox="s", spec=ExecSpec(argv=("sleep", "60")))))
    assert kind is Kind.ERROR
    assert b"resource_exhausted" in body
    assert not door.open


def test_a_module_that_an_upgrade_has_removed_is_no_fault_of_the_callers(tmp_path: Path) -> None:
    class Replaced(FakeDoor):
        async def perform(self, action: Any, principal: Principal) -> Any:
            from paddock import removed_by_an_upgrade  # type: ignore[attr-defined]

            return removed_by_an_upgrade

    ((kind, body),) = asyncio.run(_ask(Replaced(tmp_path), CreateSandbox()))
    assert kind is Kind.ERROR
    error = codec.decode_error(body)
    assert isinstance(error, InvalidStateError)
    assert error.hint == "paddock daemon restart"


def test_a_create_that_was_undone_is_made_anew_when_its_caller_asks_again(tmp_path: Path) -> None:
    made: dict[str | None, SandboxId] = {}

    class Keyed(FakeDoor):
        async def perform(self, action: Any, principal: Principal) -> Any:
            if isinstance(action, CreateSandbox) and action.idempotency_key in made:
                return self.sandboxes[made[action.idempotency_key]]
            result = await super().perform(action, principal)
            if isinstance(action, CreateSandbox):
                made[action.idempotency_key] = result.id
            return result

    door = Keyed(tmp_path)

    async def ask(flags: int) -> tuple[Kind, bytes]:
        answers: list[tuple[Kind, bytes]] = []
        requests = Requests(door, Principal("local:test"), control=_control)
        frame = Frame(Kind.OPEN, 1, codec.encode(codec.Request(action=CreateSandbox(), id="1")), flags=flags)
        session = Session("0" * 32, 0, lambda session: None)
        await requests.answer(session, frame, lambda kind, body, descriptors=(): answers.append((kind, body)))
        (answer,) = answers
        return answer

    assert asyncio.run(ask(0))[0] is Kind.REPLY
    (undone,) = door.sandboxes
    asyncio.run(door.perform(KillSandbox(sandbox=undone), Principal("local:test")))
    for _ in range(2):
        kind, body = asyncio.run(ask(AGAIN))
        assert kind is Kind.REPLY
        assert codec.decode_result(body, CreateSandbox).state is State.RUNNING
    assert [info.state for info in door.sandboxes.values()] == [State.KILLED, State.RUNNING]


def test_an_answer_is_freed_when_the_daemon_has_forgotten_it(tmp_path: Path) -> None:
    """Without the cycle collector, which comes seldom: answers are large."""

    class Reply:
        def __call__(self, kind: Kind, body: bytes, descriptors: tuple[int, ...] = ()) -> None: ...

    async def kept() -> object:
        requests = Requests(FakeDoor(tmp_path), Principal("local:test"), control=_control)
        body = codec.encode(codec.Request(action=ListSandboxes(), id="1"))
        session = Session("0" * 32, 0, lambda session: None)
        reply = Reply()
        await asyncio.ensure_future(requests.answer(session, Frame(Kind.OPEN, 1, body), reply))
        return weakref.ref(reply)

    gc.disable()
    try:
        reference = asyncio.run(kept())
        assert callable(reference)
        assert reference() is None
    finally:
        gc.enable()


def test_changes_are_encoded_outside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = codec.encode

    def encoding(value: object) -> bytes:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return encode(value)

    monkeypatch.setattr(codec, "encode", encoding)
    diff = MountDiff(sandbox=SandboxId("sb_1"), target="/workspace", source="/", changes=(), patch=b"x")
    assert codec.decode(asyncio.run(_requests._encoded(diff)), MountDiff) == diff


@pytest.mark.parametrize("count", [0, 1, 128, 129, 1000])
def test_a_long_list_is_answered_in_parts_and_reads_as_one(count: int) -> None:
    rows = tuple(SandboxId(f"sb_{number}") for number in range(count))

    async def scene() -> tuple[bytes, int]:
        told, turns = asyncio.ensure_future(_requests._encoded(rows)), 0
        while not told.done():
            await asyncio.sleep(0)
            turns += 1
        return told.result(), turns

    body, turns = asyncio.run(scene())
    assert json.loads(body) == list(rows)
    assert turns >= count // 128, "it holds the loop"
