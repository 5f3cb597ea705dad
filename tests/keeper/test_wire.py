"""The keeper's messages: whole or not at all, whatever way the stream is cut."""

from __future__ import annotations

import os
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.keeper import _wire

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=50),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
messages = st.lists(st.dictionaries(st.text(max_size=8), values, max_size=5), max_size=6)


@given(messages=messages, cuts=st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_messages_arrive_whole_and_in_order_however_the_stream_is_cut(
    messages: list[dict[str, object]], cuts: list[int]
) -> None:
    stream = b"".join(map(_wire.encode, messages))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        inbox, received = _wire.Inbox(), list[dict[str, object]]()
        at = 0
        while at < len(stream):
            size = cuts[at % len(cuts)]
            ours.sendall(stream[at : at + size])
            at += size
            inbox.receive(theirs)
            received += inbox.messages()
        assert received == messages


@given(st.binary(min_size=4, max_size=400))
def test_garbage_is_a_wire_error_or_waits_for_more_and_nothing_else(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(data)
        inbox = _wire.Inbox()
        inbox.receive(theirs)
        try:
            inbox.messages()
        except _wire.WireError:
            pass


def test_a_length_beyond_the_limit_is_refused_before_its_bytes_arrive() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(struct.pack("!I", _wire.MAX_MESSAGE + 1))
        inbox = _wire.Inbox()
        inbox.receive(theirs)
        with pytest.raises(_wire.WireError, match="announced"):
            inbox.messages()


def test_descriptors_travel_with_their_message() -> None:
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    with ours, theirs:
        _wire.send(ours, {"op": "hello"}, (write,))
        inbox = _wire.Inbox()
        inbox.receive(theirs)
        assert inbox.messages() == [{"op": "hello"}]
        (received,) = inbox.descriptors
        os.write(received, b"x")
        assert os.read(read, 1) == b"x"
    for fd in (read, write, received):
        os.close(fd)
