"""A connection on which both sides ask: answers, descriptors and deaths come to whoever has asked."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from paddock.linux import local_sockets
from paddock.wire import Frame, Kind, WireError, pack
from paddock.wire import duplex as duplex_module
from paddock.wire.duplex import Attempt, Duplex, NoAnswer, NotSent, OtherVersion, greet


class Pair:
    """Two ends in one loop. The other one answers by `answer`."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.heard: asyncio.Queue[Frame] = asyncio.Queue()
        self.ended = asyncio.Event()
        self.answer: Callable[[Duplex, Frame], None] = lambda line, frame: self.heard.put_nowait(frame)
        self.socket = ours
        self.one = Duplex(ours, lambda line, frame: None, lambda line: None)
        self.other = Duplex(theirs, lambda line, frame: self.answer(line, frame), lambda line: self.ended.set())

    def close(self) -> None:
        self.one.close()
        self.other.close()


def play(scene: Callable[[Pair], Coroutine[Any, Any, None]]) -> None:
    async def act() -> None:
        pair = Pair()
        try:
            async with asyncio.timeout(60):
                await scene(pair)
        finally:
            pair.close()

    asyncio.run(act())


def test_answers_come_to_whoever_asked_in_whatever_order() -> None:
    async def scene(pair: Pair) -> None:
        asked = [asyncio.ensure_future(pair.one.ask(b"%d" % number)) for number in range(3)]
        frames = [await pair.heard.get() for _ in asked]
        for frame in reversed(frames):
            pair.other.send(Kind.REPLY, frame.channel, b"to " + frame.body)
        assert [(await one).body for one in asked] == [b"to 0", b"to 1", b"to 2"]

    play(scene)


def test_a_long_frame_leaves_the_loop_to_others_between_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplex_module, "send_some", lambda peer, data, descriptors: peer.send(data[:10]))

    async def scene(pair: Pair) -> None:
        turns = 0
        pair.one.send(Kind.OPEN, 1, bytes(1000))
        while pair.heard.empty():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 100
        assert (await pair.heard.get()).body == bytes(1000)

    play(scene)


def test_descriptors_stay_with_their_frame_and_are_closed_here_once_sent() -> None:
    async def scene(pair: Pair) -> None:
        sent = [socket.socket().detach() for _ in range(5)]
        inodes = [os.fstat(one).st_ino for one in sent]
        asked = [asyncio.ensure_future(pair.one.ask(bytes(1 << 20), fds)) for fds in ((), (*sent[:3],), (*sent[3:],))]
        found: list[int] = []
        for number in (0, 3, 2):
            frame = await pair.heard.get()
            assert len(frame.descriptors) == number
            found += [os.fstat(one).st_ino for one in frame.descriptors]
            for one in frame.descriptors:
                os.close(one)
            pair.other.send(Kind.REPLY, frame.channel)
        await asyncio.gather(*asked)
        assert found == inodes

    play(scene)


def test_a_death_says_whether_the_request_had_been_heard() -> None:
    async def scene(pair: Pair) -> None:
        heard = asyncio.ensure_future(pair.one.ask(b"heard"))
        await pair.heard.get()
        ours = socket.socket().detach()
        unheard = asyncio.ensure_future(pair.one.ask(bytes(4 << 20), (ours,)))  # more than any socket holds
        await asyncio.sleep(0)
        pair.other.close()
        with pytest.raises(ConnectionError) as one:
            await heard
        with pytest.raises(NotSent):
            await unheard
        with pytest.raises(NotSent):
            await pair.one.ask(b"late", (socket.socket().detach(),))
        assert not isinstance(one.value, NotSent)

    play(scene)


def test_the_descriptors_of_an_answer_that_nobody_waits_for_are_closed() -> None:
    async def scene(pair: Pair) -> None:
        asking = asyncio.ensure_future(pair.one.ask(b""))
        frame = await pair.heard.get()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        reader, writer = os.pipe()
        pair.other.send(Kind.REPLY, frame.channel, b"", (writer,))
        assert await asyncio.to_thread(os.read, reader, 1) == b""
        os.close(reader)

    play(scene)


def test_what_is_no_frame_or_is_refused_by_whoever_hears_it_ends_the_connection() -> None:
    async def scene(pair: Pair) -> None:
        def refuse(line: Duplex, frame: Frame) -> None:
            raise WireError("not today")

        pair.answer = refuse
        with pytest.raises(ConnectionError):
            await pair.one.ask(b"")
        assert pair.ended.is_set()

    async def garbage(pair: Pair) -> None:
        pair.socket.send(b"\xff" * 64)
        await pair.ended.wait()

    play(scene)
    play(garbage)


# -- greeting

_SERVE = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1] + "/it.sock")
listener.listen()
print(flush=True)
while True:
    peer, _ = listener.accept()
    peer.close()
    if sys.argv[2] == "leaves":
        break
"""


def _nothing(line: Duplex, frame: Frame) -> None: ...
def _nobody(_: object) -> None: ...


def meet(directory: Path, answer: Callable[[tuple[Duplex, Frame] | None], None] = lambda met: None) -> None:
    async def act() -> None:
        async with asyncio.timeout(60):
            met = await greet(lambda: local_sockets.connect(directory, "it.sock"), b"", _nothing, _nobody, _nobody)
            answer(met)
            if met is not None:
                met[0].close()

    asyncio.run(act())


def test_one_that_ends_connections_and_lives_is_a_stranger_with_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplex_module, "LEAVE_SECONDS", 0.05)
    with subprocess.Popen([sys.executable, "-c", _SERVE, tmp_path, "stays"], stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        one.stdout.readline()
        with pytest.raises(OtherVersion) as caught:
            meet(tmp_path)
        assert caught.value.pid == one.pid
        one.kill()


def test_one_that_is_just_leaving_is_nobody(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _SERVE, tmp_path, "leaves"], stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        one.stdout.readline()
        found: list[object] = []
        meet(tmp_path, found.append)
        assert found == [None]


def test_the_greeting_is_the_first_frame_and_its_answer_is_on_channel_0(tmp_path: Path) -> None:
    async def act() -> None:
        async with asyncio.timeout(60):
            with local_sockets.listen(tmp_path, "it.sock") as listener:
                connecting = asyncio.ensure_future(
                    greet(lambda: local_sockets.connect(tmp_path, "it.sock"), b"hi", _nothing, _nobody, _nobody)
                )
                listener.setblocking(False)
                peer, _ = await asyncio.get_running_loop().sock_accept(listener)
                with peer:
                    assert await asyncio.get_running_loop().sock_recv(peer, 100) == pack(Kind.HELLO, 0, b"hi")
                    peer.send(pack(Kind.HELLO, 0, b"ho"))
                    met = await connecting
                    assert met is not None
                    assert met[1].body == b"ho"
                    met[0].close()

    asyncio.run(act())


def test_the_descriptors_of_an_answer_are_closed_when_the_connection_ended_behind_it() -> None:
    """The answer and what ends the connection come at once, before the greeter has had its turn."""
    ours, theirs = socket.socketpair()
    far, near = os.pipe()
    waiting = [ours]

    def refuse(line: Duplex, frame: Frame) -> None:
        raise WireError("unasked")

    async def act() -> None:
        async with asyncio.timeout(60):
            socket.send_fds(theirs, [pack(Kind.HELLO, 0, descriptors=(near,)) + pack(Kind.CONTROL, 0)], [near])
            os.close(near)
            assert await greet(lambda: waiting.pop() if waiting else None, b"", refuse, _nobody, _nobody) is None

    os.set_blocking(far, False)
    with theirs:
        asyncio.run(act())
    assert os.read(far, 1) == b"", "nobody holds the other end"
    os.close(far)


def test_a_peer_that_answers_nothing_is_given_up_and_no_other() -> None:
    async def scene(pair: Pair) -> None:
        look = pair.one.expect_answers
        for _ in range(4):  # nothing is asked
            look()
        asked = [asyncio.ensure_future(pair.one.ask(b"")) for _ in range(2)]
        first, _ = await pair.heard.get(), await pair.heard.get()
        look()
        look()
        pair.other.send(Kind.REPLY, first.channel)  # it works on the other one
        await asked[0]
        look()
        look()
        assert not pair.one.closed
        look()
        assert pair.one.closed
        with pytest.raises(NoAnswer, match=f"process {os.getpid()} has not answered"):
            await asked[1]

    play(scene)


def test_all_callers_give_up_a_listener_that_hangs_and_are_connected_when_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(duplex_module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(duplex_module, "_GRACE_SECONDS", 0.01)
    peers: list[Duplex] = []

    async def connect(on_silence: Callable[[NoAnswer], object]) -> bool:
        greeting = await greet(lambda: local_sockets.connect(tmp_path, "socket"), b"", _nothing, _nobody, on_silence)
        assert greeting is not None
        peers.append(greeting[0])
        return True

    async def act() -> None:
        attempt = Attempt()
        with local_sockets.listen(tmp_path, "socket") as listener:
            for _ in range(2):
                together = await asyncio.gather(*(attempt.join(connect) for _ in range(3)), return_exceptions=True)
                assert [type(error) for error in together] == [NoAnswer] * 3
            listener.setblocking(False)
            joined = asyncio.ensure_future(attempt.join(connect))
            peer, _ = listener.accept()
            with peer:
                peer.send(pack(Kind.HELLO, 0))
                assert await joined
                with pytest.raises(BlockingIOError):
                    listener.accept()
                peers[0].expect_answers()
                with pytest.raises(NoAnswer):
                    await peers[0].ask(b"")

    asyncio.run(act())
