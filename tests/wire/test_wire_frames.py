"""The codec of the daemon's wire: what is packed comes out again however it is cut, and nothing else comes out."""

from __future__ import annotations

import array
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.wire import MAX_DESCRIPTORS, Connection, Frame, Inbox, Kind, WireError, close_all, copy_all, pack
from paddock.wire._frames import _OF_GUESTS
from tests.orphans import descriptors

FRAMES = st.lists(
    st.tuples(
        st.sampled_from(sorted(set(Kind) - set(_OF_GUESTS))),
        st.integers(0, 0xFFFF_FFFF),
        st.binary(max_size=300),
        st.integers(0, 0xFFFF),
    ),
    max_size=8,
)


@pytest.fixture
def pair() -> Generator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    connection = Connection(ours, max_body=1 << 20)
    with theirs:
        yield connection, theirs
    connection.close()


@given(FRAMES, st.lists(st.integers(1, 64), min_size=1, max_size=20))
def test_frames_come_out_as_they_were_packed_however_they_are_cut(
    frames: list[tuple[Kind, int, bytes, int]], cuts: list[int]
) -> None:
    data = b"".join(pack(kind, channel, body, flags=flags) for kind, channel, body, flags in frames)
    inbox, found, position, turn = Inbox(1 << 20), list[Frame](), 0, 0
    while position < len(data):
        size = cuts[turn % len(cuts)]
        found += inbox.feed(data[position : position + size])
        position, turn = position + size, turn + 1
    assert [(frame.kind, frame.channel, frame.body, frame.flags) for frame in found] == frames
    assert inbox.is_empty


_WITH_MANY_UNDER_WAY = """
import array, os, resource, socket
from paddock.linux import caps
from paddock.wire import Connection, Kind

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))
caps.drop_all()
full, other = socket.socketpair()
for _ in range(2):
    full.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 250))])
ours, theirs = socket.socketpair()
Connection(ours).send(Kind.OPEN, 1, b"{}", descriptors=(0,))
frame = Connection(theirs).receive()
print(len(frame.descriptors), resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_descriptors_are_sent_while_as_many_as_this_program_may_have_are_under_way_elsewhere() -> None:
    """A sandbox of an ordinary user can have more under way than a program with the usual soft limit."""
    done = subprocess.run([sys.executable, "-c", _WITH_MANY_UNDER_WAY], capture_output=True, text=True, check=False)
    assert done.stdout == "1 (256, 4096)\n", done.stderr


@given(st.binary(max_size=200))
def test_garbage_is_an_error_or_an_unfinished_frame_and_takes_no_memory(data: bytes) -> None:
    inbox = Inbox(64)
    try:
        frames = inbox.feed(data)
    except WireError:
        return
    assert all(len(frame.body) <= 64 and not frame.descriptors for frame in frames)


@pytest.mark.parametrize(
    "data",
    [
        pack(Kind.OPEN, 1, b"x" * 65),
        pack(Kind.DATA, 1, b"x"),
        pack(Kind.OPEN, 1, b"{}").replace(b"\x02\x00", b"\x63\x00", 1),
        pack(Kind.OPEN, 1, b"{}", descriptors=(0,)),
        pack(Kind.OPEN, 1, b"{}", descriptors=(0,) * (MAX_DESCRIPTORS + 1)),
    ],
    ids=["too long", "kind of a guest", "unknown kind", "announces a descriptor", "announces too many"],
)
def test_what_is_not_the_protocol_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        Inbox(64).feed(data)


def test_descriptors_arrive_with_their_frame_and_are_closed_on_exec(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    reading, writing = os.pipe()
    there = Connection(theirs.dup())
    there.send(Kind.REPLY, 7, b"{}", descriptors=(reading,))
    there.send(Kind.REPLY, 8, b"{}")
    os.close(reading)
    first, second = connection.receive(), connection.receive()
    assert first is not None
    assert second is not None
    (got,) = first.descriptors
    assert not os.get_inheritable(got)
    os.write(writing, b"through")
    assert os.read(got, 100) == b"through"
    assert second.descriptors == ()
    close_all((got, writing))
    there.close()


def test_descriptors_that_no_frame_announces_end_the_connection_and_are_closed(
    pair: tuple[Connection, socket.socket],
) -> None:
    connection, theirs = pair
    before = descriptors()
    null = os.open(os.devnull, os.O_RDONLY)
    rights = array.array("i", [null] * MAX_DESCRIPTORS).tobytes()
    theirs.sendmsg([pack(Kind.REPLY, 1, b"{}")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    assert connection.receive() is not None
    theirs.sendmsg([pack(Kind.REPLY, 1, b"{}")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    os.close(null)
    with pytest.raises(WireError, match="more descriptors"):
        connection.receive()
    connection.close()
    assert descriptors() <= before


def test_an_end_between_frames_is_an_end_and_one_within_is_an_error(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    theirs.sendall(pack(Kind.REPLY, 1, b"{}") + pack(Kind.REPLY, 2, b"{}")[:-1])
    theirs.shutdown(socket.SHUT_WR)
    first = connection.receive()
    assert first is not None
    assert first.channel == 1
    with pytest.raises(WireError, match="middle of a frame"):
        connection.receive()


def test_copies_of_descriptors_are_made_all_or_none() -> None:
    with tempfile.TemporaryFile() as file:
        before = descriptors()
        with pytest.raises(OSError, match="Bad file descriptor"):
            copy_all((file.fileno(), file.fileno(), -1))
        assert descriptors() <= before
        copies = copy_all((file.fileno(),))
        assert os.path.sameopenfile(file.fileno(), *copies)
        close_all(copies)
