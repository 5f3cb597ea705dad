"""What the nursery owes to those who wait, when spares can't be made."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, cast

import pytest

from paddock.keeper import _spare
from paddock.keeper._errors import JailError
from paddock.keeper._nursery import MOST_AT_ONCE, Nursery
from paddock.keeper._plan import SAMPLE, JailPlan
from paddock.keeper._trace import Steps
from paddock.linux.undo import UndoStack


def test_all_who_wait_are_answered_when_no_further_spare_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    voices: list[socket.socket] = []

    def begin(house: object, stem: object, fault: str = "") -> _spare.Spare:
        if len(voices) == MOST_AT_ONCE:
            raise JailError("nothing is left to make it of")
        sync, voice = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sync.setblocking(False)
        voices.append(voice)
        undo = UndoStack()
        undo.push(sync.close)
        return _spare.Spare(pid=0, pidfd=-1, group=None, slot=None, sync=sync, undo=undo, steps=Steps())

    monkeypatch.setattr(_spare, "begin", begin)
    handlers: dict[int, Callable[[], None]] = {}
    no_house = cast("Any", None)
    nursery = Nursery(no_house, watch=handlers.__setitem__, unwatch=handlers.__delitem__, born=lambda jail: None)
    answers: list[dict[str, object]] = []
    for _ in range(5 * MOST_AT_ONCE):
        nursery.create(JailPlan.unpack(SAMPLE), answers.append)

    for voice in voices:
        voice.send(b'{"error": "it does not become one", "errno": null, "after": "clone"}')
    for handler in list(handlers.values()):
        handler()

    assert len(answers) == 5 * MOST_AT_ONCE
    assert not nursery.busy
    assert not handlers
    for voice in voices:
        voice.close()
