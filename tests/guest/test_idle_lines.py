"""A guest that has spoken to an earlier pilot, and had nothing open then, is left alone until somebody wants it."""

from __future__ import annotations

import socket
from collections.abc import Generator

import pytest

from paddock.guest._frames import VERSION, Kind, pack
from paddock.guest._loop import Loop
from paddock.guest._switchboard import Board

MARK = b"0123456789abcdef"
OUR_HELLO = pack(Kind.HELLO, 0, {"version": VERSION})
HELLO = pack(Kind.HELLO, 0, {"version": VERSION, "features": [], "mark": MARK.hex()})


@pytest.fixture
def line() -> Generator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


def _turn(loop: Loop) -> None:
    """All that is there to be done, once."""
    loop.soon(loop.stop)
    loop.run()


def _said(stream: socket.socket) -> bytes:
    try:
        return stream.recv(1 << 16)
    except BlockingIOError:
        return b""


def test_it_is_greeted_with_its_mark_when_the_first_service_comes(line: tuple[socket.socket, socket.socket]) -> None:
    guest, theirs = line
    loop = Loop()
    board = Board(loop, theirs, MARK, idle=True)
    assert _said(guest) == b""
    assert board.settled
    assert board.idle
    ours, service = socket.socketpair()
    with ours:
        board.add(service)
        assert _said(guest) == MARK + OUR_HELLO
        assert not board.settled  # its answer is under way
        assert not board.idle
        guest.send(MARK + HELLO)
        _turn(loop)
        assert board.settled
        assert board.idle
        assert ours.recv(1 << 16)[4] == Kind.HELLO
        assert _said(guest) == b""


def test_an_agent_that_takes_the_place_of_a_dead_one_meanwhile_is_answered(
    line: tuple[socket.socket, socket.socket],
) -> None:
    guest, theirs = line
    loop = Loop()
    board = Board(loop, theirs, MARK, idle=True)
    guest.send(MARK + HELLO)
    _turn(loop)
    assert _said(guest).startswith(MARK)
    ours, service = socket.socketpair()
    with ours:
        board.add(service)
        assert ours.recv(1 << 16)[4] == Kind.HELLO


def test_a_line_on_which_something_was_open_is_greeted_at_once(line: tuple[socket.socket, socket.socket]) -> None:
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
    assert board.settled
