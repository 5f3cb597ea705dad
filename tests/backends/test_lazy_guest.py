"""A guest that answers pings, and of what it is asked nothing, or only the beginning, holds nobody for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from paddock.backends._guest_connection import GuestConnection
from paddock.backends._guest_exec import GuestExecHandle
from paddock.errors import GuestLost, GuestProtocolError, PaddockError, SandboxError
from paddock.guest._frames import Kind
from tests.backends.peers import (
    CALLS,
    HELD,
    OTHERS,
    Request,
    Serve,
    background,
    foreground,
    lying,
    operations,
    terminal,
)

BY_NATURE = {"accept"}
"""It waits for somebody to come."""


@pytest.fixture(autouse=True)
def little_time() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("patience_seconds", "answer_seconds", "work_seconds"):
            patch.setattr(GuestConnection, name, 2.0)
        yield


async def silent(request: Request) -> None:
    if request.op == "ping":
        await request.answer({})


async def begins(request: Request) -> None:
    await silent(request)
    if request.op != "ping":
        await request.say(Kind.REPLY, {"pid": 1})


async def error_of(serve: Serve, call: Callable[[GuestConnection], Awaitable[Any]]) -> BaseException | None:
    async with lying(serve) as (connection, _):
        try:
            await call(connection)
        except PaddockError as error:
            return error
    return None


def told(serve: Serve, calls: dict[str, Callable[[GuestConnection], Awaitable[Any]]]) -> None:
    async def main() -> None:
        errors = await asyncio.gather(*(error_of(serve, call) for call in calls.values()))
        for name, error in zip(calls, errors, strict=True):
            assert isinstance(error, GuestLost), (name, error)
            assert "answers, but has not done" in error.message, (name, error)

    asyncio.run(main())


def test_every_operation_is_tried() -> None:
    assert {name for name in CALLS if " " not in name} | HELD.keys() | OTHERS == operations()


def test_no_call_waits_for_ever() -> None:
    told(silent, {name: call for name, call in CALLS.items() if name not in BY_NATURE})


async def overfill(writer: Any) -> None:
    while True:
        await writer.write(bytes(1 << 18))


GOES_ON: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "read": lambda reader: reader.read(),
    "download": lambda reader: reader.read(),
    "output": lambda reader: reader.read(),
    "write": lambda writer: writer.aclose(),
    "upload": lambda writer: writer.aclose(),
}
WORKED_AT = ("copy", "remove_tree", "list", "find", "grep", "watch")


def test_nothing_that_was_begun_waits_for_ever() -> None:
    def then(name: str, go_on: Callable[[Any], Awaitable[Any]]) -> Callable[[GuestConnection], Awaitable[Any]]:
        async def call(connection: GuestConnection) -> None:
            await go_on(await CALLS[name](connection))

        return call

    told(
        begins,
        {
            **{name: then(name, go_on) for name, go_on in GOES_ON.items()},
            **{f"{name}, more": then(name, overfill) for name in ("write", "upload")},
            **{name: CALLS[name] for name in WORKED_AT},
        },
    )


async def disobeys(request: Request) -> None:
    if request.body.get("background"):
        await request.answer({"pid": 1})
    else:
        await (silent if request.op == "kill_exec" else begins)(request)


@pytest.mark.parametrize("way", ["kill", "aclose"])
@pytest.mark.parametrize("start", [foreground, background, terminal])
def test_who_does_not_end_a_command_is_cut_off(
    start: Callable[[GuestConnection], Awaitable[GuestExecHandle]], way: str
) -> None:
    async def main() -> None:
        async with lying(disobeys) as (connection, _):
            handle = await start(connection)
            if start is background and way == "aclose":  # it runs on, and may
                with pytest.raises(GuestLost, match="answers, but"):
                    await handle.aclose()
                return
            with pytest.raises(GuestProtocolError, match="was not ended in 2 s") as caught:
                await (handle.kill() if way == "kill" else handle.aclose())
            assert caught.value.details["unended"] == handle.id
            assert connection.closed
            with pytest.raises(SandboxError):
                await handle.wait()

    asyncio.run(main())


def test_a_terminal_that_is_not_sized_is_told() -> None:
    async def serve(request: Request) -> None:
        await (silent if request.op == "resize" else begins)(request)

    async def resize(connection: GuestConnection) -> None:
        await HELD["resize"](await terminal(connection))

    told(serve, {"resize": resize})
