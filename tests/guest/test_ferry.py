"""A line goes on over connections that break, and who lies on one harms nobody."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from struct import pack

import pytest

from paddock.guest._ferry import Ferry
from paddock.guest._hybrid import Caller
from paddock.guest._loop import IN, OUT, Loop

SECONDS = 60
GREETING = pack("!4s16s16sQ", b"pdk1", b"o" * 16, bytes(16), 0)


def play(loop: Loop, over: Callable[[], bool]) -> None:
    """Until it is over. A minute is more than any machine needs."""
    timed_out: list[bool] = []

    def late() -> None:
        timed_out.append(True)
        loop.stop()

    def look() -> None:
        if over():
            loop.stop()
        else:
            loop.soon(look)

    loop._running = True  # pyright: ignore[reportPrivateUsage]
    timer = loop.after(SECONDS, late)
    loop.soon(look)
    loop.run()
    timer.cancel()
    assert not timed_out


class Side:
    """A ferry and who speaks on its line: says `saying`, piece by piece, and hears."""

    def __init__(self, loop: Loop, saying: bytes = b"") -> None:
        self.loop = loop
        self.line, shore = socket.socketpair()
        self.line.setblocking(False)
        self.saying, self.heard, self.lost = bytearray(saying), bytearray(), False
        self.ferry = Ferry(loop, shore, self._lost)
        self._watch()

    def say(self, data: bytes) -> None:
        self.saying += data
        self._watch()

    def close(self) -> None:
        self.ferry.close()
        self.loop.unwatch(self.line.fileno())
        self.line.close()

    def _watch(self) -> None:
        self.loop.watch(self.line.fileno(), IN | (OUT if self.saying else 0), self._ready)

    def _ready(self, events: int) -> None:
        if events & OUT:
            del self.saying[: self.line.send(self.saying)]
        if events & IN:
            data = self.line.recv(1 << 16)
            if not data:
                self.loop.unwatch(self.line.fileno())
                return
            self.heard += data
        self._watch()

    def _lost(self) -> None:
        self.lost = True


def join(one: Side, other: Side) -> tuple[socket.socket, socket.socket]:
    near, far = socket.socketpair()
    for end in (near, far):  # little fits, so that much is under way when it breaks
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    one.ferry.cross(near)
    other.ferry.cross(far)
    return near, far


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_and_nothing_comes_twice_however_often_a_connection_breaks(seed: int) -> None:
    chance, loop = random.Random(seed), Loop()
    there, back = chance.randbytes(3_000_000), chance.randbytes(2_000_000)
    one, other = Side(loop, there), Side(loop, back)
    ends = join(one, other)
    breaks = 0
    next_break = 50_000

    def over() -> bool:
        nonlocal ends, breaks, next_break
        if len(one.heard) + len(other.heard) >= next_break:
            next_break += 50_000
            breaks += 1
            if chance.random() < 0.5:
                ends[chance.randrange(2)].shutdown(socket.SHUT_RDWR)  # both hear of it
            ends = join(one, other)
        return other.heard == there and one.heard == back

    play(loop, over)
    assert breaks >= 10
    assert not one.lost
    assert not other.lost
    one.close()
    other.close()


def test_a_connection_that_breaks_before_the_other_side_has_greeted_costs_nothing() -> None:
    loop = Loop()
    one, other = Side(loop, b"first words"), Side(loop)
    near, far = socket.socketpair()
    one.ferry.cross(near)
    other.ferry.cross(far)
    play(loop, lambda: one.ferry._greeted)  # pyright: ignore[reportPrivateUsage]
    join(one, other)
    play(loop, lambda: other.heard == b"first words")
    one.close()
    other.close()


def test_with_somebody_new_the_stream_begins_anew() -> None:
    """As a machine that was copied while a pilot spoke to it: what was for that one is for nobody else."""
    loop = Loop()
    guest, pilot = Side(loop), Side(loop, bytes(100_000) + b"half of a fra")
    join(guest, pilot)
    play(loop, lambda: guest.heard.endswith(b"half of a fra"))
    pilot.close()
    near, far = socket.socketpair()
    guest.ferry.cross(near)
    far.sendall(GREETING)
    guest.say(b"for the first")
    far.settimeout(SECONDS)
    play(loop, lambda: not guest.saying and _readable(far))
    far.close()
    second = Side(loop, b"MARK hello" + bytes(600_000))
    join(guest, second)
    play(loop, lambda: guest.heard.endswith(b"MARK hello" + bytes(600_000)))
    guest.say(b"for the second")
    play(loop, lambda: second.heard == b"for the second")
    assert len(guest.heard) == 100_000 + 13 + 10 + 600_000
    guest.close()
    second.close()


def test_what_somebody_earlier_said_and_nobody_has_taken_yet_is_not_taken_for_the_new_ones_words() -> None:
    loop = Loop()
    guest, pilot = Side(loop), Side(loop, bytes(600_000))
    loop.unwatch(guest.line.fileno())
    join(guest, pilot)
    play(loop, lambda: len(guest.ferry._landing) > 100_000)  # pyright: ignore[reportPrivateUsage]
    pilot.close()
    second = Side(loop, b"MARK hello" + bytes(600_000))
    join(guest, second)
    guest.say(b"")
    play(loop, lambda: guest.heard.endswith(b"MARK hello" + bytes(600_000)))
    assert not second.lost
    guest.close()
    second.close()


def head(kind: int, number: int) -> bytes:
    return pack("!BQ", kind, number)


LIES = {
    "no greeting": b"HTTP/1.1 200 OK\r\n" + bytes(64),
    "nobody": pack("!4s16s16sQ", b"pdk1", bytes(16), bytes(16), 0),
    "a kind that there is not": GREETING + head(7, 1),
    "a piece without end": GREETING + head(0, 1 << 40),
    "an empty piece": GREETING + head(0, 0),
    "more than was said": GREETING + head(1, 1),
    "much more than was said": GREETING + head(1, (1 << 64) - 1),
}


@pytest.mark.parametrize("lie", LIES)
def test_who_lies_ends_his_line_and_no_other(lie: str) -> None:
    loop = Loop()
    side, bystander, friend = Side(loop), Side(loop), Side(loop, b"good morning")
    join(bystander, friend)
    near, far = socket.socketpair()
    side.ferry.cross(near)
    far.sendall(LIES[lie])
    play(loop, lambda: side.lost)
    assert side.line.recv(1) == b""
    play(loop, lambda: bystander.heard == b"good morning")
    far.close()
    for one in (side, bystander, friend):
        one.close()


def test_who_says_without_end_is_not_read_while_nobody_listens() -> None:
    loop = Loop()
    side = Side(loop)
    loop.unwatch(side.line.fileno())
    near, far = socket.socketpair()
    side.ferry.cross(near)
    far.setblocking(False)
    far.sendall(GREETING)
    piece = head(0, 65536) + bytes(65536)
    sent = 0
    unsent = memoryview(piece)

    def stuck() -> bool:
        nonlocal sent, unsent
        try:
            while sent < 50_000_000:
                count = far.send(unsent)
                sent += count
                unsent = unsent[count:] or memoryview(piece)
        except BlockingIOError:
            return sent > 600_000
        return True

    play(loop, stuck)
    assert sent < 5_000_000
    far.close()
    side.close()


# the hybrid socket


class Machine:
    """What listens on the socket of a machine's vsock: the handshake as docs/vsock.md of Firecracker has it."""

    def __init__(self, loop: Loop, path: str, answers: list[bytes | None]) -> None:
        self.loop, self.answers, self.asked = loop, answers, list[bytes]()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        self.side = Side(loop)
        self.streams: list[socket.socket] = []
        loop.watch(self.listener.fileno(), IN, self._called)

    def _called(self, events: int) -> None:
        stream, _ = self.listener.accept()
        self.streams.append(stream)
        self.loop.watch(stream.fileno(), IN, lambda events: self._told(stream))

    def _told(self, stream: socket.socket) -> None:
        self.loop.unwatch(stream.fileno())
        self.asked.append(stream.recv(100))
        answer = self.answers.pop(0) if self.answers else b"OK 1073741824\n"
        if answer is None:
            stream.close()
            return
        stream.sendall(answer)
        if answer.startswith(b"OK 1"):
            self.side.ferry.cross(stream)

    def close(self) -> None:
        self.loop.unwatch(self.listener.fileno())
        self.listener.close()
        self.side.close()
        for stream in self.streams:
            stream.close()


@pytest.mark.parametrize("answer", [None, b"NO\n", b"OK one\n", b"OK " + b"9" * 40, b"\n"])
def test_a_machine_in_which_nobody_listens_yet_is_called_again(answer, tmp_path) -> None:
    loop = Loop()
    path = str(tmp_path / "vsock")
    line, shore = socket.socketpair()
    caller = Caller(loop, path, 1024, shore, lambda: None)
    caller.call()  # the socket is not there either
    machine = Machine(loop, path, [answer, answer])
    line.sendall(b"hello")
    play(loop, lambda: machine.side.heard == b"hello")
    assert machine.asked == [b"CONNECT 1024\n"] * 3
    machine.side.say(b"and back")
    play(
        loop, lambda: line.recv(100, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"and back" if _readable(line) else False
    )
    caller.close()
    machine.close()
    line.close()


def test_a_line_rests_while_its_machine_stands_and_goes_on_after(tmp_path) -> None:
    loop = Loop()
    path = str(tmp_path / "vsock")
    line, shore = socket.socketpair()
    caller = Caller(loop, path, 1025, shore, lambda: None)
    machine = Machine(loop, path, [])
    caller.call()
    line.sendall(b"before ")
    play(loop, lambda: machine.side.heard == b"before ")
    caller.rest()
    line.sendall(b"meanwhile ")
    play(loop, lambda: not machine.side.ferry.crossing)
    assert machine.side.heard == b"before "
    caller.call()
    play(loop, lambda: machine.side.heard == b"before meanwhile ")
    assert len(machine.asked) == 2
    caller.close()
    machine.close()
    line.close()


def _readable(stream: socket.socket) -> bool:
    try:
        return bool(stream.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return False
