"""Which programs are started below a process: told by the kernel, of those alone, and bounded."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
from collections.abc import Generator
from typing import Any

import pytest

from paddock.egress import _starts
from paddock.egress._starts import Starts
from paddock.linux import proc_events
from paddock.linux.proc_events import EXIT, Event

_START = "import subprocess, sys; sys.stdin.read(); [subprocess.run(['true']) for _ in range(int(sys.argv[1]))]"


@pytest.fixture
def events() -> Generator[socket.socket]:
    try:
        opened = proc_events.open_events()
    except OSError as error:
        pytest.skip(f"this kernel does not tell this user of processes: {error}")
    with opened:
        yield opened


class Listening(Starts):
    """Knows which processes it has heard the end of."""

    def __init__(self, events: socket.socket, said: list[dict[str, Any]]) -> None:
        super().__init__(events, said.append, lambda pid, first: {"pid": pid, "first": first})
        self.ended: set[int] = set()

    def _take(self, event: Event) -> None:
        super()._take(event)
        if event.what == EXIT:
            self.ended.add(event.words[1])


def scene(events: socket.socket, count: int) -> list[dict[str, Any]]:
    """What is said of a process that starts so many, while one beside it starts as many."""
    while True:
        said = once(events, count)
        if all(one["what"] != "process.gap" for one in said):  # the machine was too busy, which was said
            assert all(one["detail"].get("first") in (None, said[0]["detail"]["first"]) for one in said)
            return said


def once(events: socket.socket, count: int) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    starts = Listening(events, said)
    command = [sys.executable, "-c", _START, str(count)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE) as watched,
        subprocess.Popen(command, stdin=subprocess.PIPE) as stranger,
    ):
        why = starts.watch("sb_a", 5, watched.pid)
        for one in (stranger, watched):
            assert one.stdin is not None
            one.stdin.close()
        poll = select.poll()
        poll.register(events, select.POLLIN)
        while why is None and not {watched.pid, stranger.pid} <= starts.ended:
            assert poll.poll(60_000), said
            starts.hear()
            if any(one["what"] == "process.gap" for one in said):
                break
    if why is not None:
        pytest.skip(why)
    starts.leave("sb_a")
    return said


def test_what_is_started_below_is_told_with_its_end_and_nothing_else(events: socket.socket) -> None:
    said = scene(events, 3)
    starts = [one["detail"]["pid"] for one in said if one["what"] == "process.start"]
    ends = [(one["detail"]["pid"], one["detail"]["code"]) for one in said if one["what"] == "process.end"]
    assert len(starts) == 3
    assert ends == [(pid, 0) for pid in starts]
    assert {(one["sandbox"], one["incarnation"]) for one in said} == {("sb_a", 5)}


def test_a_flood_is_counted_and_not_told(events: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_starts, "_BURST", 4.0)
    monkeypatch.setattr(_starts, "PER_SECOND", 0.0)
    assert len(scene(events, 20)) == 4


def test_where_the_kernel_does_not_tell_that_is_said() -> None:
    assert "does not tell" in (Starts(None, lambda said: None, lambda pid, first: {}).watch("sb_a", 0, 1) or "")
