"""The line to an agent behind another wall: how it begins, and how it ends."""

from __future__ import annotations

import socket
from collections.abc import Generator

import pytest

from paddock.guest._frames import VERSION, Kind, pack
from paddock.guest._loop import Loop
from paddock.guest._switchboard import Board

MARK = b"0123456789abcdef"
OUR_HELLO = pack(Kind.HELLO, 0, {"version": VERSION})


@pytest.fixture
def line() -> Generator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


def _said(stream: socket.socket) -> bytes:
    try:
        return stream.recv(1 << 16)
    except BlockingIOError:
        return b""


def test_a_guest_that_has_spoken_to_an_earlier_pilot_is_greeted_with_its_mark(
    line: tuple[socket.socket, socket.socket],
) -> None:
    guest, theirs = line
    Board(Loop(), theirs, MARK)
    assert _said(guest) == MARK + OUR_HELLO


def test_whoever_comes_after_the_line_has_ended_finds_nobody_and_hears_of_no_lie(
    line: tuple[socket.socket, socket.socket],
) -> None:
    """The guest ends a moment before its end is seen: what is asked meanwhile must not look like a breach."""
    guest, theirs = line
    loop = Loop()
    board = Board(loop, theirs)
    guest.close()
    loop.soon(lambda: loop.soon(loop.stop))  # a round sees the end, the next heeds it
    loop.run()
    ours, service = socket.socketpair()
    with ours:
        ours.setblocking(False)
        board.add(service)
        assert ours.recv(1 << 16) == b""
