"""Connections inside that a channel carries: to a port, from a unix socket; and descriptors that are passed on."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from pathlib import Path

import pytest

from paddock.wire.guest import Accept, Connect, Error, Hand, Kind, Limit, Op, Stream
from tests.native.driver import Connection, Guest, GuestError, frame

BYTES = bytes(range(256)) * 8192  # more than all windows and buffers on the way


def connect(host: Connection, port: int) -> int:
    channel = host.open(Op.CONNECT, Connect(port=port).pack())
    host.reply(channel)
    return channel


def eof(host: Connection, channel: int) -> None:
    host.send(frame(Kind.EOF, Stream.IN, channel))


def received(host: Connection, channel: int) -> bytes:
    """To the end of stream 1, with credit for what comes."""
    data = bytearray()
    while (got := host.for_channel(channel)).kind is not Kind.EOF:
        if got.kind is Kind.DATA:
            assert got.code == Stream.OUT
            data += got.body
            host.credit(channel, Stream.OUT, len(got.body))
        else:
            assert got.kind is Kind.CREDIT, got
    return bytes(data)


def echoed(host: Connection, channel: int, peer: socket.socket) -> None:
    """Bytes both ways, an end both ways, the last word."""
    host.data(channel, b"to it")
    eof(host, channel)
    assert b"".join(iter(lambda: peer.recv(100), b"")) == b"to it"
    peer.sendall(b"from it")
    peer.shutdown(socket.SHUT_WR)
    assert received(host, channel) == b"from it"
    assert host.for_channel(channel).kind is Kind.CLOSE


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_port_is_reached_and_each_direction_ends_by_itself(host: Connection, address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        channel = connect(host, server.getsockname()[1])
        with server.accept()[0] as peer:
            echoed(host, channel, peer)


def test_more_bytes_than_all_windows_go_both_ways_at_once(host: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        channel = connect(host, server.getsockname()[1])
        with server.accept()[0] as peer:
            sending = threading.Thread(target=lambda: (peer.sendall(BYTES), peer.shutdown(socket.SHUT_WR)))
            sending.start()
            got = bytearray()
            reading = threading.Thread(target=lambda: got.extend(b"".join(iter(lambda: peer.recv(65536), b""))))
            reading.start()
            left, window, back, ended = memoryview(BYTES), Limit.WINDOW, bytearray(), False
            while left or not ended:
                if left and window:
                    count = min(window, len(left))
                    host.data(channel, bytes(left[:count]))
                    left, window = left[count:], window - count
                    if not left:
                        eof(host, channel)
                    continue
                answer = host.for_channel(channel)
                if answer.kind is Kind.CREDIT:
                    window += int.from_bytes(answer.body[:4], "little")
                elif answer.kind is Kind.DATA:
                    back += answer.body
                    host.credit(channel, Stream.OUT, len(answer.body))
                else:
                    assert answer.kind is Kind.EOF
                    ended = True
            reading.join()
            sending.join()
            assert got == BYTES
            assert back == BYTES


def test_nobody_listens(host: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(GuestError) as caught:
        connect(host, port)
    assert (caught.value.errno, caught.value.step) == (errno.ECONNREFUSED, "port")
    for wrong in (0, 65536):
        with pytest.raises(GuestError) as caught:
            connect(host, wrong)
        assert caught.value.errno == errno.EINVAL


def test_a_reset_is_told_after_what_came_before_it(host: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        channel = connect(host, server.getsockname()[1])
        peer = server.accept()[0]
        peer.sendall(b"before")
        assert host.for_channel(channel).body == b"before"
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        assert host.for_channel(channel).kind is Kind.EOF
        last = host.for_channel(channel)
        assert last.kind is Kind.ERROR
        assert Error.unpack(last.body).errno == errno.ECONNRESET


def test_whoever_lets_go_hangs_up(guest: Guest, host: Connection) -> None:
    before = guest.descriptors()
    with socket.create_server(("127.0.0.1", 0)) as server:
        channel = connect(host, server.getsockname()[1])
        with server.accept()[0] as peer:
            host.send(frame(Kind.CLOSE, channel=channel))
            assert host.for_channel(channel).kind is Kind.CLOSE
            assert peer.recv(1) == b""
        again = guest.connect()
        connect(again, server.getsockname()[1])
        with server.accept()[0] as peer:
            again.close()
            assert peer.recv(1) == b""
    host.ping()
    assert guest.descriptors() == before


def test_callers_at_a_door_are_served_in_the_order_in_which_they_were_awaited(
    guest: Guest, host: Connection, tmp_path: Path
) -> None:
    before = guest.descriptors()
    path = tmp_path / "door"
    channels = [host.open(Op.ACCEPT, Accept(path=bytes(path)).pack()) for _ in range(2)]
    host.ping()
    assert path.stat().st_mode & 0o777 == 0o600
    peers = [socket.socket(socket.AF_UNIX) for _ in channels]
    for channel, peer in zip(channels, peers, strict=True):
        peer.connect(str(path))
        host.reply(channel)
        with peer:
            echoed(host, channel, peer)
    host.ping()
    assert not path.exists(), "nobody is awaited there any more"
    assert guest.descriptors() == before


def test_a_caller_who_comes_before_he_is_awaited_waits(host: Connection, tmp_path: Path) -> None:
    path = tmp_path / "door"
    first = host.open(Op.ACCEPT, Accept(path=bytes(path)).pack())
    host.ping()
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as other:
        one.connect(str(path))
        host.reply(first)
        other.connect(str(path))
        second = host.open(Op.ACCEPT, Accept(path=bytes(path)).pack())
        host.reply(second)
        echoed(host, second, other)
        echoed(host, first, one)


def test_relay_sockets_are_bounded_and_what_cannot_be_one_is_refused(host: Connection, tmp_path: Path) -> None:
    for n in range(Limit.RELAY_SOCKETS):
        host.open(Op.ACCEPT, Accept(path=bytes(tmp_path / f"d{n}")).pack())
    with pytest.raises(GuestError) as caught:
        host.reply(host.open(Op.ACCEPT, Accept(path=bytes(tmp_path / "more")).pack()))
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(GuestError) as caught:
        host.reply(host.open(Op.ACCEPT, Accept(path=b"relative").pack()))
    assert caught.value.errno == errno.EINVAL


def test_a_directory_is_no_door(host: Connection, tmp_path: Path) -> None:
    with pytest.raises(GuestError) as caught:
        host.reply(host.open(Op.ACCEPT, Accept(path=bytes(tmp_path)).pack()))
    assert caught.value.errno == errno.EADDRINUSE


def test_connections_are_bounded(host: Connection, tmp_path: Path) -> None:
    for _ in range(Limit.RELAYS):
        host.open(Op.ACCEPT, Accept(path=bytes(tmp_path / "d")).pack())
    with pytest.raises(GuestError) as caught:
        connect(host, 1)
    assert (caught.value.errno, caught.value.step) == (errno.EAGAIN, "relays")


@pytest.mark.parametrize("kind", [Kind.DATA, Kind.EOF])
def test_who_sends_before_there_is_anybody_breaks_the_protocol(host: Connection, tmp_path: Path, kind: Kind) -> None:
    channel = host.open(Op.ACCEPT, Accept(path=bytes(tmp_path / "d")).pack())
    host.send(frame(kind, Stream.IN, channel, b"x" if kind is Kind.DATA else b""))
    assert host.ended()


def test_descriptors_are_passed_on(host: Connection) -> None:
    name = f"paddock_{os.getpid()}"
    ours, theirs = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as taker:
        taker.bind(f"\0{name}")
        channel = host.open(Op.HAND, Hand(name=name.encode(), text=b"take").pack(), [theirs])
        host.reply(channel)
        os.close(theirs)
        text, descriptors, _, _ = socket.recv_fds(taker, 100, 4)
    assert text == b"take"
    os.write(descriptors[0], b"it")
    assert os.read(ours, 10) == b"it"
    for fd in (ours, *descriptors):
        os.close(fd)


def test_nobody_takes_them(guest: Guest, host: Connection) -> None:
    before = guest.descriptors()
    ours, theirs = os.pipe()
    with pytest.raises(GuestError) as caught:
        host.reply(host.open(Op.HAND, Hand(name=b"nobody", text=b"take").pack(), [theirs]))
    assert (caught.value.errno, caught.value.step) == (errno.ECONNREFUSED, "hand")
    os.close(theirs)
    assert os.read(ours, 1) == b"", "the guest keeps none"
    os.close(ours)
    with pytest.raises(GuestError) as caught:
        host.reply(host.open(Op.HAND, Hand(name=b"nobody", text=b"take").pack()))
    assert caught.value.errno == errno.EINVAL
    assert guest.descriptors() == before
