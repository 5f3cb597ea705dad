"""The trunk: many connections over one line, and a guest that may say anything."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Generator

import pytest

from paddock.vmm._loop import Loop
from paddock.vmm._trunk import Trunk

HELLO, OPEN, DATA, CREDIT, END, PAUSE, RESUME = range(1, 8)
WINDOW = 1 << 18


class Steps(Loop):
    def turn(self) -> None:
        """All that is there to be done."""
        for _ in range(20):
            self._running = True
            self.soon(lambda: self.soon(self.stop))
            self.run()


class Machine:
    """The other end of the trunk, as the test has it."""

    def __init__(self) -> None:
        self.loop = Steps()
        self.line, theirs = socket.socketpair()
        self.line.setblocking(False)
        self.said: list[str] = []
        self.trunk = Trunk(self.loop, theirs, self.said.append)
        self._came = b""

    def say(self, kind: int, number: int = 0, body: bytes = b"") -> None:
        self.line.sendall(struct.pack("<IHHI", len(body), kind, 0, number) + body)
        self.loop.turn()

    def heard(self) -> list[tuple[int, int, bytes]]:
        """What was said to it since."""
        self.loop.turn()
        frames: list[tuple[int, int, bytes]] = []
        while True:
            try:
                self._came += self.line.recv(1 << 20)
            except BlockingIOError:
                break
            self.loop.turn()
        while self._came:
            length, kind, _, number = struct.unpack_from("<IHHI", self._came)
            frames.append((kind, number, self._came[12 : 12 + length]))
            self._came = self._came[12 + length :]
        return frames

    def service(self, name: str = "user") -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.trunk.add(name, theirs)
        return ours


@pytest.fixture
def machine() -> Generator[Machine]:
    made = Machine()
    assert made.heard() == [(HELLO, 0, struct.pack("<I", 1))]
    yield made
    made.line.close()


def greeted(machine: Machine) -> Machine:
    machine.say(HELLO, 0, struct.pack("<I", 1))
    return machine


def test_nobody_is_served_before_the_guest_has_greeted(machine: Machine) -> None:
    with machine.service() as service:
        service.send(b"early")
        assert machine.heard() == []
        greeted(machine)
        assert machine.heard() == [(OPEN, 1, b"user"), (DATA, 1, b"early")]


def test_what_one_does_not_read_keeps_no_other_waiting(machine: Machine) -> None:
    greeted(machine)
    with machine.service() as lazy, machine.service("root") as other:
        assert machine.heard() == [(OPEN, 1, b"user"), (OPEN, 2, b"root")]
        for _ in range(WINDOW >> 15):
            machine.say(DATA, 1, bytes(1 << 15))
        machine.say(DATA, 2, b"at once")
        assert other.recv(100) == b"at once"
        assert machine.said == []
        got = 0
        while got < WINDOW:
            got += len(lazy.recv(WINDOW))
            machine.loop.turn()
        credit = sum(struct.unpack("<I", body)[0] for kind, _, body in machine.heard() if kind == CREDIT)
        assert WINDOW // 2 <= credit <= WINDOW


def test_no_more_is_sent_than_the_guest_has_allowed(machine: Machine) -> None:
    greeted(machine)
    with machine.service() as service:
        machine.heard()
        sent = 0
        while sent < 2 * WINDOW:
            try:
                sent += service.send(bytes(1 << 15))
            except BlockingIOError:
                break
            machine.loop.turn()
        assert sum(len(body) for kind, _, body in machine.heard() if kind == DATA) == WINDOW
        machine.say(CREDIT, 1, struct.pack("<I", 100))
        assert [(kind, len(body)) for kind, _, body in machine.heard()] == [(DATA, 100)]


def test_an_end_comes_after_what_was_said_before_it(machine: Machine) -> None:
    greeted(machine)
    with machine.service() as service:
        service.send(b"last words")
        service.shutdown(socket.SHUT_RDWR)
    assert machine.heard() == [(OPEN, 1, b"user"), (DATA, 1, b"last words"), (END, 1, b"")]
    machine.say(DATA, 1, b"crossed it")
    machine.say(END, 1)
    with machine.service() as service:
        machine.heard()
        machine.say(DATA, 2, b"farewell")
        machine.say(END, 2)
        assert machine.heard() == [(END, 2, b"")]
        assert service.recv(100) == b"farewell"
        assert service.recv(100) == b""
    assert machine.said == []


def test_nothing_is_under_way_while_the_machine_stands(machine: Machine) -> None:
    greeted(machine)
    with machine.service() as service:
        machine.heard()
        stood = machine.trunk.pause()
        service.send(b"later")
        assert machine.heard() == [(PAUSE, 0, b"")]
        assert not stood.settled
        machine.say(PAUSE)
        assert stood.settled
        with machine.service("root"):
            assert machine.heard() == []
            machine.trunk.resume()
            assert machine.heard() == [(RESUME, 0, b""), (OPEN, 2, b"root"), (DATA, 1, b"later")]


def flood(machine: Machine) -> None:
    for _ in range(4 * WINDOW >> 15):  # more than the window, and what the service's socket takes unread
        if not machine.said:
            machine.say(DATA, 1, bytes(1 << 15))


OFFENCES: dict[str, Callable[[Machine], None]] = {
    "no greeting": lambda machine: machine.say(DATA, 1, b"x"),
    "another version": lambda machine: machine.say(HELLO, 0, struct.pack("<I", 2)),
    "a second greeting": lambda machine: greeted(greeted(machine)).loop.turn(),
    "a connection that never was": lambda machine: greeted(machine).say(DATA, 2, b"x"),
    "no data": lambda machine: greeted(machine).say(DATA, 1),
    "data beyond its credit": lambda machine: flood(greeted(machine)),
    "credit for nothing": lambda machine: greeted(machine).say(CREDIT, 1, struct.pack("<I", 1)),
    "half a credit": lambda machine: greeted(machine).say(CREDIT, 1, b"xx"),
    "silence that nobody asked for": lambda machine: greeted(machine).say(PAUSE),
    "a host's word": lambda machine: greeted(machine).say(OPEN, 1, b"user"),
    "an endless frame": lambda machine: machine.line.sendall(struct.pack("<IHHI", 1 << 31, DATA, 0, 1)),
}


@pytest.mark.parametrize("offence", OFFENCES)
def test_a_guest_that_breaks_the_rules_is_told_of_and_serves_nobody(machine: Machine, offence: str) -> None:
    with machine.service() as service:
        OFFENCES[offence](machine)
        machine.loop.turn()
        assert len(machine.said) == 1
        while service.recv(1 << 20):  # what was allowed, and then the end
            pass
        with machine.service() as late:
            assert late.recv(100) == b""
