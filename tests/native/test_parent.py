"""The agent's parent: with a third descriptor from its starter, something ends what a killed agent leaves behind."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.driver import Connection, Ended, start
from tests.orphans import PATIENCE_SECONDS

SCRIPT = "setsid sleep 600 & echo $PPID; exec sleep 600"


class Family:
    def __init__(self, program: Path, directory: Path) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(directory / "s"))
        listener.listen(8)
        reader, self.lifeline = os.pipe2(os.O_CLOEXEC)
        self.report, writer = os.pipe2(os.O_CLOEXEC)
        self.pid = start(program, [listener.fileno(), reader, writer])
        for fd in (reader, writer):
            os.close(fd)
        listener.close()
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(str(directory / "s"))
        self.host = Connection(peer)
        fifo = directory / "held"
        os.mkfifo(fifo)
        self.held = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        self.command = self.host.exec("sh", "-c", f"exec 9>{fifo}; {SCRIPT}")
        self.agent = int(self.command.read_until(b"\n"))

    def reported(self) -> bytes:
        """What it says when nothing is left of the command: b"" if it was killed itself."""
        said = os.read(self.report, 64)
        # Whatever the command started has the other side of the FIFO.
        assert select.select([self.held], [], [], PATIENCE_SECONDS)[0], "something lives"
        assert os.read(self.held, 1) == b""
        return said

    def close(self) -> None:
        self.host.close()
        for fd in (self.report, self.held):
            os.close(fd)
        if self.lifeline >= 0:
            os.close(self.lifeline)
        os.waitpid(self.pid, 0)


@pytest.fixture
def family(program: Path, tmp_path: Path) -> Iterator[Family]:
    family = Family(program, tmp_path)
    yield family
    family.close()


def test_what_a_killed_agent_leaves_is_ended_before_that_is_reported(family: Family) -> None:
    os.kill(family.agent, signal.SIGKILL)
    assert family.reported() == signal.SIGKILL.to_bytes(4, "little")
    with pytest.raises(Ended):
        family.command.next()


def test_the_end_of_the_lifeline_is_the_end_of_all(family: Family) -> None:
    os.close(family.lifeline)
    family.lifeline = -1
    assert family.reported() == bytes(4)


def test_the_agent_ends_with_its_parent(family: Family) -> None:
    os.kill(family.pid, signal.SIGKILL)
    assert family.reported() == b""


def test_an_agent_that_was_stopped_goes_on(family: Family) -> None:
    os.kill(family.agent, signal.SIGSTOP)
    family.host.ping()


def test_an_agent_that_stands_still_ends_when_it_is_told(family: Family) -> None:
    os.kill(family.agent, signal.SIGSTOP)
    os.close(family.lifeline)
    family.lifeline = -1
    assert family.reported() == bytes(4)
