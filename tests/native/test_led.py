"""Pid 1 on one line of two pipes, as gVisor's sentry starts it: a new host, standing still, agents."""

from __future__ import annotations

import os
import select
import shutil
import struct
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from paddock.backends.guest import orders
from paddock.model import User
from paddock.wire.guest import VERSION, Error, Exec, HostHello, Kind, Op
from tests.native.driver import HEADER, PATIENCE_SECONDS, Ended, GuestError, frame

HELLO, OPEN, DATA, CREDIT, END, STILL, GO = range(1, 8)
LINE = struct.Struct("<IHHI")
GREETING = frame(Kind.HELLO, body=HostHello(version=VERSION).pack())


class Sentry:
    def __init__(self, program: Path, directory: Path, words: str = "") -> None:
        """`words` tell a build for faults which call fails."""
        place = directory / "sentry"
        shutil.copy(program, place)
        reader, self.writer = os.pipe()
        self.reader, writer = os.pipe()
        self.process = subprocess.Popen(
            [f"{words}{place}"], executable=place, stdin=reader, stdout=writer, env={"ASAN_OPTIONS": "detect_leaks=0"}
        )
        os.close(reader)
        os.close(writer)
        self._buffer, self._data = b"", dict[int, bytes]()

    def say(self, kind: int, number: int = 0, body: bytes = b"") -> None:
        os.write(self.writer, LINE.pack(len(body), kind, 0, number) + body)

    def greet(self) -> None:
        self.say(HELLO, body=struct.pack("<I", 1))
        while self.hear() != (HELLO, 0, struct.pack("<I", 1)):  # what the old host was told comes before
            pass

    def hear(self) -> tuple[int, int, bytes]:
        while len(self._buffer) < LINE.size or len(self._buffer) < LINE.size + LINE.unpack_from(self._buffer)[0]:
            assert self._readable(PATIENCE_SECONDS), "it says nothing"
            got = os.read(self.reader, 1 << 16)
            if not got:
                raise Ended
            self._buffer += got
        length, kind, _, number = LINE.unpack_from(self._buffer)
        body, self._buffer = self._buffer[LINE.size : LINE.size + length], self._buffer[LINE.size + length :]
        return kind, number, body

    def _readable(self, seconds: float) -> bool:
        return bool(select.select([self.reader], [], [], seconds)[0])

    def ask(self, number: int, channel: int, op: int, body: bytes = b"") -> bytes:
        """The answer, on a connection that is open."""
        self.say(DATA, number, frame(Kind.OPEN, op, channel, body))
        return self.answer(number, channel)

    def answer(self, number: int, channel: int) -> bytes:
        while True:
            kind, of, body = self.frame(number)
            if kind == Kind.ERROR:
                raise GuestError(Error.unpack(body))
            if of == channel and kind == Kind.REPLY:
                return body

    def frame(self, number: int) -> tuple[int, int, bytes]:
        """The next frame on a connection: its kind, its channel, its body."""
        data = self._data.pop(number, b"")
        while len(data) < HEADER.size or len(data) < HEADER.size + HEADER.unpack_from(data)[0]:
            kind, heard, body = self.hear()
            if kind == END:
                raise Ended
            assert (kind, heard) == (DATA, number)
            data += body
        length, kind, _, channel, *_ = HEADER.unpack_from(data)
        self._data[number] = data[HEADER.size + length :]
        return kind, channel, data[HEADER.size : HEADER.size + length]

    def begin(self) -> None:
        user = User(name="user", uid=os.getuid(), gid=os.getgid(), home="/")
        self.say(OPEN, 1, b"init")
        self.say(DATA, 1, GREETING)
        self.ask(1, 1, Op.IDENTITY, orders.identity("user", user, filter=b"").body)
        self.ask(1, 2, Op.BEGIN, orders.begin(deadline=1e9, idle=0.0, retention=0.0, limits={}).body)
        self.say(END, 1)
        while self.hear()[0] != END:
            pass

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.reader)
        os.close(self.writer)


@pytest.fixture
def sentry(program: Path, tmp_path: Path) -> Generator[Sentry]:
    sentry = Sentry(program, tmp_path)
    try:
        sentry.greet()
        sentry.begin()
        yield sentry
    finally:
        sentry.stop()


def test_after_still_nothing_is_said_until_go(sentry: Sentry) -> None:
    sentry.say(OPEN, 2, b"user")
    sentry.say(DATA, 2, GREETING)
    pong = sentry.ask(2, 1, Op.PING)
    sentry.say(STILL)
    while sentry.hear() != (STILL, 0, b""):
        pass
    sentry.say(DATA, 2, frame(Kind.OPEN, Op.PING, 2))
    sentry.say(STILL)
    assert sentry.hear() == (STILL, 0, b""), "the agent's answer waits"
    sentry.say(GO)
    assert sentry.answer(2, 2) == pong


@pytest.mark.parametrize("still", [True, False])
def test_a_new_host_is_served_whatever_the_old_one_left(sentry: Sentry, still: bool) -> None:
    sentry.say(OPEN, 2, b"user")
    sentry.say(DATA, 2, GREETING + frame(Kind.OPEN, Op.PING, 1)[:-3])
    if still:
        sentry.say(STILL)
    sentry.greet()
    sentry.say(OPEN, 1, b"user")
    sentry.say(DATA, 1, GREETING)
    assert sentry.ask(1, 1, Op.PING)


def test_a_name_that_nobody_has_ends_at_once(sentry: Sentry) -> None:
    sentry.say(OPEN, 2, b"nobody")
    assert sentry.hear() == (END, 2, b"")


def test_no_command_has_the_line(sentry: Sentry) -> None:
    sentry.say(OPEN, 2, b"user")
    sentry.say(DATA, 2, GREETING)
    request = Exec(id=b"one", argv=(b"/bin/sleep", b"1000"), cwd=b"/", umask=0o22).pack()
    pid = int.from_bytes(sentry.ask(2, 1, Op.EXEC, request)[:4], "little")
    ours = {os.readlink(f"/proc/self/fd/{fd}") for fd in (sentry.reader, sentry.writer)}
    assert not ours & {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    for number in (0, 1):
        if os.getuid() == 0:  # for others it is not dumpable
            assert os.readlink(f"/proc/{sentry.process.pid}/fd/{number}") == "/dev/null"
