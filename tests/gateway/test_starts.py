"""Which programs are started below a process: told by the kernel, of those alone, and bounded."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from paddock.gateway.processes import process_resolver
from paddock.gateway.processes.process_resolver import Starts
from paddock.linux.proc_events import ACK, EXIT, Event, EventsLost, EventSocket

_SO_RCVBUF_BYTES = 4096
# For each line that it reads one child, which ends at once or waits for the end of its input and then starts a program.
_PARENT = """
import os, subprocess, sys
waiting = ["sh", "-c", "read x; /bin/true"]
print(flush=True)
for line in sys.stdin:
    if line == "wait\\n":
        child = subprocess.Popen(waiting, stdin=subprocess.PIPE)
    elif line == "go\\n":
        child.communicate()
    else:
        subprocess.run(["true"])
    print(flush=True)
"""
_START = """
import subprocess, sys
print(flush=True)
sys.stdin.read()
for _ in range(int(sys.argv[1])):
    subprocess.run(["true"])
"""


@pytest.fixture
def events() -> Generator[EventSocket]:
    try:
        opened = EventSocket()
    except OSError as error:
        pytest.skip(f"this kernel does not tell this user of processes: {error}")
    with opened:
        yield opened


class Listening(Starts):
    """Knows which processes it has heard the end of."""

    def __init__(self, events: EventSocket, said: list[dict[str, Any]]) -> None:
        super().__init__(events, said.append, lambda pid, first: {"pid": pid, "first": first})
        self.ended: set[int] = set()

    def _take(self, event: Event) -> None:
        super()._take(event)
        if event.what == EXIT:
            self.ended.add(event.words[1])


def scene(events: EventSocket, count: int) -> list[dict[str, Any]]:
    """What is said of a process that starts so many, while one beside it starts as many."""
    while True:
        said = once(events, count)
        if not any(map(_busy, said)):
            assert all(one["detail"].get("first") in (None, said[0]["detail"]["first"]) for one in said)
            return said


def start(program: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def until_it_runs(one: subprocess.Popen[bytes]) -> None:
    """The kernel tells of a program's own start after Popen has returned, which then would be told of, too."""
    assert one.stdout is not None
    assert one.stdout.readline() == b"\n"


def _busy(said: dict[str, Any]) -> bool:
    """The machine was, so that the kernel has dropped some: which was said."""
    return said["what"] == "process.gap" and said["detail"]["why"].startswith("the machine")


def once(events: EventSocket, count: int) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    starts = Listening(events, said)
    with start(_START, str(count)) as watched, start(_START, str(count)) as stranger:
        for one in (watched, stranger):
            until_it_runs(one)
        why = starts.watch("sb_a", 5, watched.pid)
        for one in (stranger, watched):
            assert one.stdin is not None
            one.stdin.close()
        poll = select.poll()
        poll.register(events, select.POLLIN)
        while why is None and not {watched.pid, stranger.pid} <= starts.ended:
            assert poll.poll(60_000), said
            starts.hear()
            if any(map(_busy, said)):
                break
    if why is not None:
        pytest.skip(why)
    starts.leave("sb_a")
    return said


def test_what_is_started_below_is_told_with_its_end_and_nothing_else(events: EventSocket) -> None:
    said = scene(events, 3)
    starts = [one["detail"]["pid"] for one in said if one["what"] == "process.start"]
    ends = [(one["detail"]["pid"], one["detail"]["code"]) for one in said if one["what"] == "process.end"]
    assert len(starts) == 3
    assert ends == [(pid, 0) for pid in starts]
    assert {(one["sandbox"], one["detail"]["instance_id"]) for one in said} == {("sb_a", 5)}


def test_a_flood_is_counted_and_not_told(events: EventSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_resolver, "_BURST", 4.0)
    monkeypatch.setattr(process_resolver, "PER_SECOND", 0.0)
    *told, last = scene(events, 20)
    assert len(told) == 4
    # The kernel tells of an end after whoever waits for it was woken: so the next start may come first.
    ends_to_come = sum(one["what"] == "process.start" for one in told)
    assert (last["what"], last["detail"]["lost_before"]) == ("process.gap", 20 + ends_to_come - 4)


def test_what_was_started_while_the_kernel_dropped_is_known_when_it_tells_again(
    events: EventSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[str, Any]] = []
    starts = Starts(events, said.append, lambda pid, first: {"pid": pid, "argv": _argv(pid)})
    with start(_PARENT) as parent:
        until_it_runs(parent)
        why = starts.watch("sb_a", 5, parent.pid)
        if why is not None:
            pytest.skip(why)
        with socket.socket(fileno=os.dup(events.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SO_RCVBUF_BYTES)

        def tell(word: str) -> None:
            assert parent.stdin is not None
            assert parent.stdout is not None
            parent.stdin.write(f"{word}\n".encode())
            parent.stdin.flush()
            parent.stdout.readline()

        for _ in range(30):
            tell("flood")
        with monkeypatch.context() as few:  # the first look is before the kernel has dropped all that it will
            few.setattr(process_resolver, "_MOST_AT_ONCE", 1)
            starts.hear()
        tell("wait")
        while select.select([events], [], [], 0)[0]:
            starts.hear()
        starts.hear()
        assert any(one["what"] == "process.gap" for one in said)
        del said[:]
        tell("go")
        starts.hear()
        starts.leave("sb_a")
    assert any(one["what"] in ("process.start", "process.gap") for one in said), "neither told of nor missed"


def test_what_is_missing_shows_by_the_numbers_that_the_kernel_gives() -> None:
    def message(number: int, processor: int, what: int = EXIT) -> bytes:
        body = struct.pack("=IIQ", what, processor, 0) + bytes(16)
        return struct.pack("=IHHII", 36 + len(body), 3, 0, 0, 0) + struct.pack("=IIIIHH", 1, 1, number, 0, 32, 0) + body

    try:
        news = EventSocket()
    except OSError as error:
        pytest.skip(f"this kernel does not tell this user of processes: {error}")
    with news:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        os.dup2(ours.fileno(), news.fileno())
        with ours, theirs:
            for number, processor in ((0xFFFF_FFFF, 0), (7, 1), (0, 0), (8, 1), (2, 0), (3, 0)):
                theirs.send(message(number, processor))
            assert [_read(news) for _ in range(8)] == ["told"] * 4 + ["lost"] + ["told"] * 2 + ["nothing"]
            theirs.send(message(4, 0, ACK))  # to somebody else who listens
            theirs.send(message(0, 0xFFFF_FFFF, ACK))  # as older kernels do
            theirs.send(message(5, 0))
            assert [_read(news) for _ in range(4)] == ["told"] * 3 + ["nothing"]


def test_somebody_else_who_begins_and_ends_to_listen_is_no_loss(events: EventSocket) -> None:
    try:
        events.listen(True)
    except OSError as error:
        pytest.skip(f"this kernel does not tell this user of processes: {error}")
    told, dropped = list[str](), True
    while dropped:  # if the machine started more than there was room for, which the kernel says
        told, dropped = [], False
        for _ in range(5):
            with EventSocket() as other:
                other.listen(True)
                other.listen(False)
        while "nothing" not in told:
            told.append(_read(events))
            dropped |= events._overrun
    assert "lost" not in told


def _read(news: EventSocket) -> str:
    try:
        return "nothing" if news.read() is None else "told"
    except EventsLost:
        return "lost"


def _argv(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def test_one_that_cannot_be_looked_at_ends_the_looking_at_no_other(events: EventSocket) -> None:
    def fails(pid: int, first: int) -> dict[str, Any]:
        raise OSError(errno.EINVAL, "as uid_map says where the process ends just then")

    said: list[dict[str, Any]] = []
    starts = Starts(events, said.append, fails)
    command = ["sh", "-c", "echo; read x; exec true"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        until_it_runs(one)
        if (why := starts.watch("sb_a", 5, one.pid)) is not None:
            pytest.skip(why)
        one.communicate()
    while not said:
        select.select([events], [], [], 60)
        starts.hear()
    starts.leave("sb_a")
    assert said[0]["what"] == "process.gap" or said[0]["detail"]["why"] == "the process resolver failed: OSError"


def test_where_the_kernel_does_not_tell_that_is_said() -> None:
    assert "does not tell" in (Starts(None, lambda said: None, lambda pid, first: {}).watch("sb_a", 0, 1) or "")
