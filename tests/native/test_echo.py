"""File operations run in a child of the agent. The smallest of them, ECHO, shows how."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest

from paddock.wire.guest import Error, ExecFlags, Kind, Limit, Op, Stream
from tests.native.driver import Connection, Guest, GuestError, frame
from tests.native.test_commands import eventually


def echo(host: Connection, data: bytes, *, credit: int = 1 << 22) -> bytes:
    channel = host.open(Op.ECHO)
    host.credit(channel, Stream.OUT, credit)
    sent, window, got = 0, Limit.WINDOW, b""
    while True:
        while sent < len(data) and window:
            part = data[sent : sent + min(window, Limit.BODY)]
            host.data(channel, part)
            sent, window = sent + len(part), window - len(part)
            if sent == len(data):
                host.send(frame(Kind.EOF, Stream.IN, channel))
        frame_ = host.for_channel(channel)
        match frame_.kind:
            case Kind.CREDIT:
                window += int.from_bytes(frame_.body, "little")
            case Kind.DATA:
                got += frame_.body
            case Kind.CLOSE:
                return got
            case Kind.ERROR:
                raise GuestError(Error.unpack(frame_.body))
            case _:
                assert frame_.kind in (Kind.REPLY, Kind.EOF)


def test_bytes_go_in_and_come_back(host: Connection, guest: Guest) -> None:
    data = os.urandom(1_000_000)
    assert echo(host, data) == data
    host.ping()  # and with it the agent has done what follows the last answer
    before = guest.descriptors()
    for _ in range(70):  # more than may run at one time
        assert echo(host, b"x") == b"x"
    host.ping()
    assert guest.descriptors() == before


def test_an_operation_ends_when_the_host_lets_go(host: Connection, guest: Guest) -> None:
    channels = [host.open(Op.ECHO) for _ in range(10)]
    eventually("they run", lambda: len(guest.children()) == 10)
    for channel in channels:
        host.send(frame(Kind.CLOSE, channel=channel))
        assert host.for_channel(channel).kind == Kind.CLOSE
    eventually("they have ended", lambda: not guest.children())


def test_an_operation_ends_with_the_connection(guest: Guest) -> None:
    host = guest.connect()
    host.open(Op.ECHO)
    eventually("it runs", lambda: len(guest.children()) == 1)
    host.close()
    eventually("it has ended", lambda: not guest.children())


def test_a_crash_costs_one_operation(host: Connection, guest: Guest) -> None:
    channel = host.open(Op.ECHO)
    eventually("it runs", lambda: len(guest.children()) == 1)
    os.kill(guest.children()[0], signal.SIGKILL)
    with pytest.raises(GuestError) as caught:
        host.reply(channel)
    assert caught.value.errno == errno.EIO
    assert echo(host, b"y") == b"y"


def test_more_operations_than_may_run_are_refused_by_name(host: Connection) -> None:
    channels = [host.open(Op.ECHO) for _ in range(Limit.HELPERS)]
    with pytest.raises(GuestError) as caught:
        host.reply(host.open(Op.ECHO))
    assert (caught.value.errno, caught.value.step) == (errno.EAGAIN, "operations")
    for channel in channels:
        host.send(frame(Kind.CLOSE, channel=channel))
        host.for_channel(channel)
    assert echo(host, b"z") == b"z"


def test_an_operation_has_no_descriptor_of_the_agent(host: Connection, guest: Guest) -> None:
    if os.getuid() != 0:
        pytest.skip("only root may see the descriptors of a process that is not dumpable")
    host.exec("cat", flags=ExecFlags.STDIN)
    host.open(Op.ECHO)
    eventually("it runs", lambda: len(guest.children()) == 2)
    pid = next(pid for pid in guest.children() if b"cat" not in Path(f"/proc/{pid}/cmdline").read_bytes())
    eventually("it has closed them", lambda: len(os.listdir(f"/proc/{pid}/fd")) == 6)
