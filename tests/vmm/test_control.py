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


def talk(wire: bytes, fds: tuple[int, ...] = ()) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
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
    return served, [json.loads(line) for line in said.splitlines()]


def line(id: int, op: str, fds: int = 0, **fields: object) -> bytes:
    return json.dumps({"id": id, "op": op, "fds": fds, **fields}).encode() + b"\n"


def test_each_request_has_its_answer() -> None:
    _, said = talk(line(1, "long", size=100_000) + line(2, "fail") + line(3, "short"))
    error = {"code": "file", "message": "No such file or directory", "errno": "ENOENT"}
    assert said == [{"text": "x" * 100_000, "id": 1}, {"error": error, "id": 2}, {"text": "", "id": 3}]


@pytest.mark.parametrize("wire", [b"no JSON\n", b"[]\n", b'{"op":"x"}\n', line(1, "x", fds=1), line(1, "x")[:-1]])
def test_what_is_no_request_ends_the_conversation(wire: bytes) -> None:
    assert talk(wire + line(2, "x"))[0] == []


def test_descriptors_that_nobody_takes_are_closed() -> None:
    reader, writer = os.pipe()
    talk(line(1, "x", fds=1), (writer,))
    talk(line(1, "x"), (writer, writer))
    os.close(writer)
    assert os.read(reader, 1) == b""
    os.close(reader)


@pytest.mark.parametrize(
    ("wire", "error"),
    [
        (b'{"id":1,"error":{"code":"file","message":"full","errno":"ENOSPC"}}\n', FileError),
        (
            b'{"id":1,"error":{"code":"policy","message":"not its to say"}}\n',
            GuestProtocolError,
        ),
        (b'{"id":1,"error":{}}\n', GuestProtocolError),
        (b'{"id":1}\n', GuestProtocolError),  # an answer without what is wanted
        (b'{"id":2,"env":{}}\n', GuestProtocolError),  # nobody has asked
        (b"noise\n", GuestProtocolError),
        (b"[" * 100_000 + b"\n", GuestProtocolError),
        (b"x" * (5 << 20), GuestProtocolError),
        (b"", SandboxDiedError),
    ],
)
def test_a_service_believes_no_answer_that_is_none(wire: bytes, error: type[Exception]) -> None:
    from paddock.backends.vmm._control import Environment

    async def main() -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        control = Asking(ours)
        with theirs:
            asking = asyncio.ensure_future(control.ask("environment", Environment))
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
            asking = asyncio.ensure_future(control.ask("x", seconds=0.2))
            await asyncio.sleep(0)
            pause_clock.begin()
            await asyncio.sleep(0.5)
            assert not asking.done()
            theirs.send(b'{"id":1}\n')
            pause_clock.end()
            await asking
            with pytest.raises(GuestLostError):
                await control.ask("x", seconds=0.05)
        control.close()

    asyncio.run(main())
