"""A host that breaks the rules: the guest closes that connection, leaks nothing, and serves the others."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.wire import WireError
from paddock.wire import guest as messages
from paddock.wire.guest import (
    Attach,
    Exec,
    ExecFlags,
    HostHello,
    Kill,
    Kind,
    Limit,
    Listed,
    Op,
    Resize,
    Signal,
    Stream,
)
from tests.native.driver import ENV, HEADER, Connection, Ended, Guest, frame
from tests.native.test_commands import eventually

HELLO = frame(Kind.HELLO, body=HostHello(version=messages.VERSION).pack())
EXEC = Exec(
    id=b"x1", argv=(b"cat",), env=ENV, cwd=b"/", flags=ExecFlags.STDIN, groups=(1,), rlimits=(7, 64, 64), umask=0o22
)
CONVERSATION = (
    HELLO,
    frame(Kind.OPEN, Op.EXEC, 1, EXEC.pack()),
    frame(Kind.DATA, Stream.IN, 1, b"some bytes"),
    frame(Kind.CREDIT, Stream.OUT, 1, messages.Credit(bytes=5).pack()),
    frame(Kind.OPEN, Op.PING, 2),
    frame(Kind.OPEN, Op.EXECS, 3, messages.Execs().pack()),
    frame(Kind.OPEN, Op.RESIZE, 4, Resize(rows=1, columns=1, id=b"x1").pack()),
    frame(Kind.OPEN, Op.SIGNAL, 5, Signal(number=15, id=b"x1").pack()),
    frame(Kind.OPEN, Op.ATTACH, 6, Attach(id=b"x1", flags=3).pack()),
    frame(Kind.OPEN, Op.ECHO, 7),
    frame(Kind.OPEN, Op.KEEP, 8, messages.Keep(id=b"x1", timeout=1).pack()),
    frame(Kind.OPEN, Op.KILL, 9, Kill(id=b"x1").pack()),
    frame(Kind.EOF, Stream.IN, 7),
    frame(Kind.CLOSE, channel=1),
)


@pytest.fixture
def witness(guest: Guest) -> Iterator[Connection]:
    """Another host: the guest has to go on serving it, and to look afterwards as before."""
    host = guest.connect()
    host.ping()
    before = guest.descriptors()
    yield host
    host.ping()
    eventually("no descriptor is left", lambda: guest.descriptors() == before)
    eventually("no process is left", lambda: not guest.children())
    host.close()


def say(guest: Guest, data: bytes, *, ends: bool = True) -> None:
    """`ends`: the guest has to close the connection by itself."""
    host = guest.connect(greet=False)
    try:
        host.send(data)
        if not ends:
            host.peer.shutdown(socket.SHUT_WR)
        assert host.ended()
    except BrokenPipeError:  # it was quicker
        pass
    finally:
        host.close()


BREACHES = {
    "no hello": frame(Kind.OPEN, Op.PING, 1),
    "another version": frame(Kind.HELLO, body=HostHello(version=messages.VERSION + 1).pack()),
    "a hello that is too short": frame(Kind.HELLO, body=b"abc"),
    "a hello with more": frame(Kind.HELLO, body=HostHello(version=messages.VERSION).pack() + b"x"),
    "two hellos": HELLO + HELLO,
    "a command with an unknown flag": HELLO + frame(Kind.OPEN, Op.EXEC, 1, Exec(id=b"x", flags=1 << 20).pack()),
    "kind 0": HELLO + frame(0, 0, 1),
    "kind 11": HELLO + frame(11, 0, 1),
    "reserved bytes": HELLO + HEADER.pack(0, Kind.OPEN, Op.PING, 1, 0, 1, 0),
    "more reserved bytes": HELLO + HEADER.pack(0, Kind.OPEN, Op.PING, 1, 0, 0, 1),
    "descriptors that do not come": HELLO + frame(Kind.OPEN, Op.PING, 1, descriptors=2),
    "too many descriptors": HELLO + frame(Kind.OPEN, Op.PING, 1, descriptors=Limit.DESCRIPTORS + 1),
    "descriptors with data": HELLO + frame(Kind.DATA, 0, 1, b"x", descriptors=1),
    "a body that is too long": HELLO + frame(Kind.DATA, 1, 1, length=Limit.BODY + 1),
    "a request that is too long": HELLO + frame(Kind.OPEN, Op.EXEC, 1, length=Limit.OPEN_BODY + 1),
    "the longest of all": HELLO + frame(Kind.OPEN, Op.EXEC, 1, length=0xFFFFFFFF),
    "half of all": HELLO + frame(Kind.OPEN, Op.EXEC, 1, length=0x80000000),
    "channel 0": HELLO + frame(Kind.OPEN, Op.PING, 0),
    "a channel twice": HELLO + frame(Kind.OPEN, Op.PING, 5) + frame(Kind.OPEN, Op.PING, 5),
    "a channel that never was": HELLO + frame(Kind.DATA, 0, 7, b"x"),
    "too many channels": HELLO + b"".join(frame(Kind.OPEN, Op.ECHO, n) for n in range(1, Limit.CHANNELS + 66)) * 2,
    "a reply of the host": HELLO + frame(Kind.OPEN, Op.ECHO, 1) + frame(Kind.REPLY, 0, 1),
    "an exit of the host": HELLO + frame(Kind.OPEN, Op.ECHO, 1) + frame(Kind.EXIT, 0, 1),
    "data on a stream out": HELLO + frame(Kind.OPEN, Op.ECHO, 1) + frame(Kind.DATA, 1, 1, b"x"),
    "no data": HELLO + frame(Kind.OPEN, Op.ECHO, 1) + frame(Kind.DATA, 0, 1),
    "end of a stream that is none": HELLO + frame(Kind.OPEN, Op.ECHO, 1) + frame(Kind.EOF, 3, 1),
    "an end with a body": HELLO + frame(Kind.OPEN, Op.ECHO, 1) + frame(Kind.EOF, 0, 1, b"x"),
    "a close with a body": HELLO + frame(Kind.OPEN, Op.ECHO, 1) + frame(Kind.CLOSE, 0, 1, b"x"),
    "credit for what goes in": HELLO + frame(Kind.OPEN, Op.ECHO, 1) + frame(Kind.CREDIT, 0, 1, b"abcd"),
    "credit of three bytes": HELLO + frame(Kind.OPEN, Op.ECHO, 1) + frame(Kind.CREDIT, 1, 1, b"abc"),
    "more credit than there is": HELLO
    + frame(Kind.OPEN, Op.ECHO, 1)
    + frame(Kind.CREDIT, 1, 1, struct.pack("<I", Limit.CREDIT)) * 2,
    "a kind between two": HELLO + frame(Kind.OPEN, Op.ECHO, 1) + frame(8, 0, 1),
    "flags of attach that are none": HELLO + frame(Kind.OPEN, Op.ATTACH, 1, Attach(id=b"x", flags=8).pack()),
    "a control group that does not come": HELLO
    + frame(Kind.OPEN, Op.EXEC, 1, Exec(id=b"x", argv=(b"true",), flags=ExecFlags.CGROUP).pack()),
}


@pytest.mark.parametrize("data", BREACHES.values(), ids=BREACHES.keys())
def test_a_breach_ends_the_connection(guest: Guest, witness: Connection, data: bytes) -> None:
    say(guest, data)


def test_one_byte_more_than_the_credit_is_a_breach(guest: Guest, witness: Connection) -> None:
    """`sleep` reads nothing: its pipe and the guest take what was allowed, and no credit comes back."""
    host = guest.connect()
    command = host.exec("sleep", "600", flags=ExecFlags.STDIN)
    host.data(command.channel, bytes(Limit.WINDOW))
    host.ping()
    host.data(command.channel, b"x")
    assert host.ended()
    host.close()


def test_a_conversation_may_be_cut_at_every_byte(guest: Guest, witness: Connection) -> None:
    whole = b"".join(CONVERSATION)
    for end in range(0, len(whole), 3):
        say(guest, whole[:end], ends=False)


def test_a_conversation_byte_by_byte_is_the_same(guest: Guest, witness: Connection) -> None:
    host = guest.connect(greet=False)
    for byte in b"".join(CONVERSATION[:6]):
        host.send(bytes([byte]))
    kinds = [host.receive().kind for _ in range(3)]
    assert kinds[:2] == [Kind.HELLO, Kind.REPLY]
    host.close()


def test_any_byte_of_a_conversation_may_be_another(guest: Guest, witness: Connection) -> None:
    random = Random(3)
    whole = b"".join(CONVERSATION)
    for _ in range(300):
        spoiled = bytearray(whole)
        for _ in range(random.randrange(1, 4)):
            spoiled[random.randrange(len(HELLO), len(whole))] = random.choice((0, 1, 255, random.randrange(256)))
        say(guest, bytes(spoiled), ends=False)


def test_noise_is_no_protocol(guest: Guest, witness: Connection) -> None:
    random = Random(4)
    for _ in range(100):
        say(guest, HELLO + random.randbytes(random.randrange(1, 2000)), ends=False)


def test_descriptors_that_nobody_announced_are_closed(guest: Guest, witness: Connection) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    for count in (1, 4, 5, 100, 253):
        host = guest.connect()
        try:
            for _ in range(20):
                host.send(frame(Kind.OPEN, Op.PING, host.open(Op.PING) + 1), [null] * count)
                host._latest += 1  # pyright: ignore[reportPrivateUsage]
        except OSError:
            pass
        assert host.ended()
        host.close()
    os.close(null)


def test_wrong_numbers_of_descriptors_are_an_answer(guest: Guest, witness: Connection) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    host = guest.connect()
    for flags, count in ((0, 1), (0, 3), (ExecFlags.STDIN, 2), (ExecFlags.TERMINAL, 2)):
        with pytest.raises(Exception, match="descriptors"):
            host.exec("true", flags=flags, descriptors=[null] * count)
    host.close()
    os.close(null)


def test_a_host_that_asks_and_never_reads_is_not_asked_for_memory(guest: Guest, witness: Connection) -> None:
    host = guest.connect()
    before = guest.resident_kib()
    host.peer.settimeout(2)
    number = host._latest  # pyright: ignore[reportPrivateUsage]
    try:
        while number < 200_000:
            host.send(b"".join(frame(Kind.OPEN, Op.EXECS, number + n, messages.Execs().pack()) for n in range(1, 100)))
            number += 100
    except TimeoutError:
        pass
    else:
        raise AssertionError("the guest read all of it")
    witness.ping()
    assert guest.resident_kib() < before + 4096
    host.close()


def test_a_new_connection_beyond_the_limit_is_closed(guest: Guest, witness: Connection) -> None:
    hosts = [guest.connect() for _ in range(Limit.CONNECTIONS - 1)]
    with pytest.raises(Ended):
        guest.connect()
    for host in hosts:
        host.close()


# the codec of the host

BYTES = st.binary(max_size=40).map(lambda data: data.replace(b"\0", b"?"))
EXECS = st.builds(
    Exec,
    flags=st.integers(0, 2**32 - 1),
    uid=st.integers(0, 2**32 - 1),
    oom_score=st.integers(-1000, 1000),
    timeout=st.integers(0, 2**64 - 1),
    id=BYTES,
    argv=st.lists(BYTES, max_size=5).map(tuple),
    env=st.lists(BYTES, max_size=5).map(tuple),
    groups=st.lists(st.integers(0, 2**32 - 1), max_size=5).map(tuple),
    rlimits=st.lists(st.integers(0, 2**64 - 1), max_size=6).map(tuple),
)
LISTS = st.builds(
    messages.ExecsReply,
    before=st.integers(0, 2**64 - 1),
    execs=st.lists(st.builds(Listed, id=BYTES, code=st.integers(-1, 255)), max_size=4).map(tuple),
)


@given(st.one_of(EXECS, LISTS))
def test_a_message_is_what_was_packed(message: Exec | messages.ExecsReply) -> None:
    packed = message.pack()
    assert type(message).unpack(packed) == message
    assert type(message).unpack(packed).pack() == packed


@given(LISTS, st.data())
def test_what_is_not_a_message_is_refused(message: messages.ExecsReply, data: st.DataObject) -> None:
    """Or it is another message: there is one encoding of each."""
    packed = bytearray(message.pack())
    packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    spoiled = bytes(packed[: data.draw(st.integers(0, len(packed)))])
    try:
        assert messages.ExecsReply.unpack(spoiled).pack() == spoiled
    except WireError:
        pass
