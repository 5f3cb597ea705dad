"""What a controller makes of the requests of a service, and a service of what a controller answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from typing import Any

import pytest

from paddock.backends.pause_clock import PauseClock
from paddock.backends.vmm import Control as Asking
from paddock.errors import FileError, GuestLostError, GuestProtocolError, SandboxDiedError
from paddock.vmm._loop import Loop
from paddock.vmm.control import Control
from paddock.wire import Inbox, Kind, pack


def talk(wire: bytes, fds: tuple[int, ...] = ()) -> tuple[list[dict[str, Any]], list[tuple[Kind, int, Any]]]:
    """What a connection serves of it, and what it says, until it has hung up or the service has."""
    served: list[dict[str, Any]] = []
    loop = Loop()
    ours, theirs = socket.socketpair()

    def serve(control: Control, id: int, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        served.append(request)
        if request["op"] == "fail":
            raise FileNotFoundError(2, "nothing")
        return {"text": "x" * request.get("size", 0)}

    Control(loop, theirs, serve, lambda control: loop.stop())
    with ours:
        socket.send_fds(ours, [wire], fds)
        ours.shutdown(socket.SHUT_WR)
        loop.run()
        said = b""
        with contextlib.suppress(ConnectionError):
            while data := ours.recv(1 << 20):
                said += data
    return served, [(frame.kind, frame.channel, json.loads(frame.body)) for frame in Inbox(1 << 20).feed(said)]


def asked(id: int, op: str, fds: int = 0, **fields: object) -> bytes:
    return pack(Kind.OPEN, id, json.dumps({"op": op, **fields}).encode(), descriptors=range(fds))


def answer(body: bytes, kind: Kind = Kind.REPLY, id: int = 1) -> bytes:
    return pack(kind, id, body)


def test_each_request_has_its_answer() -> None:
    _, said = talk(asked(1, "long", size=100_000) + asked(2, "fail") + asked(3, "short"))
    error = {"code": "file", "message": "No such file or directory", "errno": "ENOENT"}
    assert said == [(Kind.REPLY, 1, {"text": "x" * 100_000}), (Kind.ERROR, 2, error), (Kind.REPLY, 3, {"text": ""})]


@pytest.mark.parametrize("wire", [b"no frame, as anybody can see\n", asked(1, "x", fds=1), asked(1, "x")[:-1]])
def test_what_is_no_request_ends_the_conversation(wire: bytes) -> None:
    assert talk(wire + asked(2, "x"))[0] == []


@pytest.mark.parametrize("body", [b"no JSON", b"[]"])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    _, said = talk(pack(Kind.OPEN, 1, body) + asked(2, "x"))
    assert [kind for kind, _, _ in said] == [Kind.ERROR, Kind.REPLY]


def test_descriptors_that_nobody_takes_are_closed() -> None:
    reader, writer = os.pipe()
    talk(asked(1, "x", fds=1), (writer,))
    talk(asked(1, "x"), (writer, writer))
    os.close(writer)
    assert os.read(reader, 1) == b""
    os.close(reader)


@pytest.mark.parametrize(
    ("wire", "error"),
    [
        (answer(b'{"code":"file","message":"full","errno":"ENOSPC"}', Kind.ERROR), FileError),
        (answer(b'{"code":"policy","message":"not its to say"}', Kind.ERROR), GuestProtocolError),
        (answer(b"{}", Kind.ERROR), GuestProtocolError),
        (answer(b"{}"), GuestProtocolError),  # an answer without what is wanted
        (answer(b'{"env":{}}', Kind.OPEN), GuestProtocolError),  # a request
        (b"noise that is no frame", GuestProtocolError),
        (answer(b"["), GuestProtocolError),
        (answer(b"[" * 100_000), GuestProtocolError),
        (answer(b"x" * (5 << 20)), GuestProtocolError),
        (answer(b'{"env":{}}', id=2) + answer(b"{}"), GuestProtocolError),  # nobody has asked for the first
        (b"", SandboxDiedError),
    ],
)
def test_a_service_believes_no_answer_that_is_none(wire: bytes, error: type[Exception]) -> None:
    from paddock.backends.vmm._control import Environment

    async def main() -> None:
        ours, theirs = socket.socketpair()
        control = Asking(ours)
        with theirs:
            asking = asyncio.ensure_future(control.call("environment", Environment))
            await asyncio.to_thread(theirs.recv, 1)  # it has asked
            theirs.setblocking(False)
            with contextlib.suppress(ConnectionError):
                await asyncio.get_running_loop().sock_sendall(theirs, wire)
            if not wire:
                theirs.close()
            with pytest.raises(error):
                await asking
        assert control.closed == (error is not FileError)
        control.close()

    asyncio.run(main())


def test_time_in_which_the_sandbox_stands_still_does_not_count() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        pause_clock = PauseClock()
        control = Asking(ours, pause_clock)
        with theirs:
            asking = asyncio.ensure_future(control.call("x", seconds=0.2))
            await asyncio.sleep(0)
            pause_clock.begin()
            await asyncio.sleep(0.5)
            assert not asking.done()
            theirs.send(answer(b"{}"))
            pause_clock.end()
            await asking
            with pytest.raises(GuestLostError):
                await control.call("x", seconds=0.05)
        control.close()

    asyncio.run(main())
