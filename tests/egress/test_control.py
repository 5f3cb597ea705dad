"""What services and the gateway say to each other survives the wire, and nothing else gets through it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.egress._channel import Channel
from paddock.egress._control import (
    MOST_BYTES,
    Answer,
    Claim,
    Claimed,
    Close,
    ControlError,
    Hello,
    Inbox,
    Message,
    Open,
    Revise,
    Secret,
    encode,
)

NUMBERS = st.integers(0, 2**31)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Hello, n=NUMBERS, version=NUMBERS),
    st.builds(
        Open,
        n=NUMBERS,
        sandbox=st.text(),
        incarnation=NUMBERS,
        snapshot=st.binary(),
        certificate=st.binary(),
        key=st.binary(),
        sockets=st.integers(0, 8),
    ),
    st.builds(Revise, n=NUMBERS, sandbox=st.text(), incarnation=NUMBERS, snapshot=st.binary()),
    st.builds(Secret, n=NUMBERS, sandbox=st.text(), name=st.text(), secret=st.binary()),
    st.builds(Close, n=NUMBERS, sandbox=st.text(), incarnation=NUMBERS),
    st.builds(Claimed, n=NUMBERS, state=st.text(), approval=st.none() | st.text()),
    st.builds(Answer, n=NUMBERS, error=st.none() | st.text(), doors=st.dictionaries(st.text(), NUMBERS)),
)


@given(st.lists(MESSAGES, max_size=5), st.integers(1, 40))
def test_messages_arrive_whole_however_the_stream_is_cut(messages: list[Message], piece: int) -> None:
    data = b"".join(map(encode, messages))
    inbox = Inbox()
    found = [message for at in range(0, len(data), piece) for message in inbox.feed(data[at : at + piece])]
    assert found == messages


@given(st.binary(max_size=200))
def test_any_bytes_are_messages_or_refused(data: bytes) -> None:
    with contextlib.suppress(ControlError):
        Inbox().feed(data)
    with contextlib.suppress(ControlError):
        Inbox().feed(struct.pack("!I", len(data)) + data)


def test_what_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(ControlError, match="announced"):
        Inbox().feed(struct.pack("!I", MOST_BYTES + 1))
    with pytest.raises(ControlError, match="over the limit"):
        encode(Revise(n=1, sandbox="sb_x", incarnation=0, snapshot=bytes(MOST_BYTES)))


def test_a_field_that_nobody_knows_is_refused() -> None:
    body = msgspec.msgpack.encode({"op": "hello", "n": 1, "version": 1, "more": 2})
    with pytest.raises(ControlError, match="more"):
        Inbox().feed(struct.pack("!I", len(body)) + body)


def order(number: int, sockets: int, size: int = 0) -> Open:
    return Open(
        n=number, sandbox="sb_x", incarnation=0, snapshot=bytes(size), certificate=b"", key=b"", sockets=sockets
    )


def test_descriptors_stay_with_their_message_and_are_closed_here_once_sent() -> None:
    async def act() -> None:
        ours, theirs = socket.socketpair()
        heard: asyncio.Queue[tuple[Message, list[int]]] = asyncio.Queue()
        one = Channel(ours, lambda message, fds: None, lambda: None)
        other = Channel(theirs, lambda message, fds: heard.put_nowait((message, fds)), lambda: None)
        sent = [socket.socket() for _ in range(5)]
        numbers = [os.fstat(each.fileno()).st_ino for each in sent]
        one.send(order(1, 0, size=1 << 20))  # more than a socket holds
        one.send(order(2, 3, size=1 << 20), sent[:3])
        one.send(order(3, 2), sent[3:])
        found: list[int] = []
        for number in (1, 2, 3):
            message, fds = await asyncio.wait_for(heard.get(), 60)
            assert message.n == number
            found += [os.fstat(fd).st_ino for fd in fds]
            for fd in fds:
                os.close(fd)
        assert found == numbers
        assert all(each.fileno() == -1 for each in sent)
        one.close()
        other.close()

    asyncio.run(act())


def test_who_announces_descriptors_that_did_not_come_is_let_go_of() -> None:
    async def act() -> None:
        ours, theirs = socket.socketpair()
        ended = asyncio.Event()
        channel = Channel(theirs, lambda message, fds: None, ended.set)
        ours.sendall(encode(order(1, 3)))
        await asyncio.wait_for(ended.wait(), 60)
        with pytest.raises(ConnectionError):
            channel.send(Claim(n=1, sandbox="", incarnation=0, revision="", kind="", digest="", summary=""))
        ours.close()

    asyncio.run(act())
