"""What a guest may make the host hold is bounded by the host, for every operation: counted in bytes that were taken."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from paddock.backends._guest_connection import GuestConnection
from paddock.errors import GuestLost, GuestProtocolError, SandboxError
from paddock.guest._frames import MAX_PATH, MAX_RESULT_BYTES, WINDOW, Kind, dump_json
from paddock.model import GrepFiles, ListFiles
from tests.backends.peers import CALLS, HELD, OTHERS, Call, Peer, Request, file, lying, operations
from tests.backends.test_hostile_guest import INFO

FOUND = dump_json(INFO) + b"\n"
MATCH = b'{"path":"/x","line_number":1,"line":"x"}\n'
UNDER_WAY = 2 * WINDOW
"""Bytes that a connection's socket and one stream's window hold at most."""

POURED = {
    "list": (FOUND * 600, MAX_RESULT_BYTES),
    "find": (FOUND * 600, WINDOW),
    "grep": (MATCH * 1500, WINDOW),
    "read": (b"x" * 65536, WINDOW),
}
"""What is poured out for ever by those whose result the host gathers or was told the size of, and how much it takes."""
UNREAD = {"download": 1, "connect": 1, "output": 1, "attach": 2, "exec": 2, "accept": 1}
"""Streams without an end of their own: what nobody reads stays where it is. By the number of streams."""
ONE_WAY = {"write", "upload", "signal", "resize", "kill_exec", "remove", "remove_tree", "execs", "agents"}
"""Nothing is gathered: the answer is one frame."""
DESCRIBED = {"stat", "mkdir", "set", "move", "move_tree", "copy"}
"""The answer names a path."""


def test_every_operation_has_its_case() -> None:
    cases = POURED.keys() | UNREAD.keys() | ONE_WAY | DESCRIBED | {"watch"}
    assert operations() == cases | OTHERS
    assert {name for name in CALLS if " " not in name} | HELD.keys() == cases


async def consumed(result: Any) -> None:
    if hasattr(result, "read"):
        while await result.read():
            pass


async def poured(call: Call, piece: bytes, peers: list[Peer], *, descriptors: bool = False) -> None:
    async def serve(request: Request) -> None:
        await request.say(Kind.REPLY, {})
        await request.pour(piece)

    async with lying(serve, descriptors=descriptors) as (connection, peer):
        peers.append(peer)
        await consumed(await call(connection))


@pytest.mark.parametrize("op", POURED)
@pytest.mark.parametrize("descriptors", [False, True])
def test_results_without_an_end_are_cut_off(op: str, descriptors: bool) -> None:
    piece, most = POURED[op]
    peers: list[Peer] = []
    with pytest.raises(GuestProtocolError, match=r"more .* than"):
        asyncio.run(poured(CALLS[op], piece, peers, descriptors=descriptors))
    assert 0 < peers[0].said <= most + UNDER_WAY


@pytest.mark.parametrize(
    ("op", "piece"),
    [
        ("list", b'{"path":"/x","kind":"file"}\n' * 1000),  # shorter than any that is true
        ("find", FOUND),
        ("grep", MATCH),
    ],
)
def test_more_items_than_were_asked_for_are_refused(op: str, piece: bytes) -> None:
    peers: list[Peer] = []
    with pytest.raises(GuestProtocolError, match="more results"):
        asyncio.run(poured(CALLS[op], piece, peers))
    assert peers[0].said <= MAX_RESULT_BYTES // 2 + UNDER_WAY


@pytest.mark.parametrize("op", ["list", "find", "grep", "watch"])
def test_a_line_without_an_end_is_cut_off(op: str) -> None:
    peers: list[Peer] = []
    with pytest.raises(GuestProtocolError, match="line without an end"):
        asyncio.run(poured(CALLS[op], b"x" * 60_000, peers))
    assert peers[0].said <= UNDER_WAY


LONG = "/" + "x" * MAX_PATH


@pytest.mark.parametrize("op", sorted(DESCRIBED - {"move_tree"}))
@pytest.mark.parametrize("field", ["path", "target"])
def test_a_path_longer_than_any_is_refused(op: str, field: str) -> None:
    async def serve(request: Request) -> None:
        await request.say(Kind.REPLY, {**INFO, field: LONG})
        await request.say(Kind.EXIT, {**INFO, field: LONG})

    async def main() -> None:
        async with lying(serve) as (connection, _):
            await CALLS[op](connection)

    with pytest.raises(GuestProtocolError, match="4096"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("call", "item"),
    [
        (file(ListFiles, path="p"), {**INFO, "path": LONG}),
        (file(ListFiles, path="p"), {**INFO, "target": LONG}),
        (file(GrepFiles, path="p", pattern="x"), {"path": LONG, "line_number": 1, "line": "x"}),
        (CALLS["watch"], {"path": LONG, "kind": "created"}),
    ],
)
def test_a_line_that_says_more_than_any_is_refused(call: Call, item: dict[str, Any]) -> None:
    async def serve(request: Request) -> None:
        await request.say(Kind.REPLY, {})
        armed = b'{"armed":true}\n' if request.op == "watch" else b""
        await request.pour(armed + dump_json(item) + b"\n")

    async def main() -> None:
        async with lying(serve) as (connection, _):
            result = await call(connection)
            await result.next()

    with pytest.raises(GuestProtocolError, match="length"):
        asyncio.run(main())


@pytest.mark.parametrize("op", UNREAD)
def test_what_nobody_reads_stays_inside(op: str) -> None:
    async def main() -> None:
        async def serve(request: Request) -> None:
            await request.say(Kind.REPLY, {"pid": 1})
            await request.pour(b"x" * 65536)

        async with lying(serve) as (connection, peer):
            result = await CALLS[op](connection)
            await peer.requests[1].full.wait()
            assert peer.said <= UNREAD[op] * WINDOW
            del result

    asyncio.run(main())


def test_changes_come_by_small_heaps() -> None:
    change = b'{"path":"/x","kind":"created"}\n'

    async def serve(request: Request) -> None:
        await request.say(Kind.REPLY, {})
        await request.pour(change * 2000, first=b'{"armed":true}\n')

    async def main() -> None:
        async with lying(serve) as (connection, peer):
            changes = await CALLS["watch"](connection)
            heard = 0
            while heard < 8 * WINDOW:
                heap = await changes.next()
                assert len(heap) * len(change) <= 2 * 65536
                heard += len(heap) * len(change)
                assert peer.said <= heard + 2 * UNDER_WAY

    asyncio.run(main())


@pytest.mark.parametrize("way", ["close", "give_up"])
def test_requests_that_are_never_ended_are_so_many_at_most(way: str) -> None:
    async def serve(request: Request) -> None:
        await request.say(Kind.REPLY, {})
        await request.say(Kind.EXIT, {"what": "x" * 1000})

    async def main() -> None:
        async with lying(serve) as (connection, peer):
            for _ in range(4097):
                channel = connection.open({"op": "copy"})
                channel.give_up(GuestLost("x")) if way == "give_up" else channel.close()
                await connection.drain()
            with pytest.raises(GuestProtocolError, match="has not ended 4096"):
                connection.open({"op": "copy"})
            assert len(peer.requests) <= 4097

    asyncio.run(main())


def test_what_is_said_to_a_request_that_was_let_go_of_is_not_kept() -> None:
    async def main() -> None:
        told = asyncio.Event()

        async def serve(request: Request) -> None:
            if request.op == "copy":
                await told.wait()
                await request.say(Kind.REPLY, {})
                await request.say(Kind.EXIT, INFO)
            else:
                await request.answer(INFO)

        async with lying(serve) as (connection, _):
            channel = connection.open({"op": "copy"})
            channel.close()
            told.set()
            await CALLS["stat"](connection)
            with pytest.raises(SandboxError, match="let go of"):
                await channel.result(dict)

    asyncio.run(main())


def test_requests_that_a_guest_does_not_read_wait_up_to_a_bound() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        connection = GuestConnection(ours)
        with theirs:
            for _ in range(9):
                connection.open({"op": "exec", "argv": ["x" * (8 << 20)]})
            with pytest.raises(GuestLost, match="does not read"):
                connection.open({"op": "ping"})
        connection.close()

    asyncio.run(main())


def test_a_list_of_commands_without_an_end_is_refused() -> None:
    item = {"id": "ex_1", "argv": ["x"], "pid": 1, "started_at": 1.0, "background": False, "status": None}

    async def serve(request: Request) -> None:
        await request.answer({"execs": [item] * 100, "before": 1})

    async def main() -> None:
        async with lying(serve) as (connection, peer):
            with pytest.raises(SandboxError, match="more commands"):
                await CALLS["execs"](connection)
            assert len(peer.requests) == 64

    asyncio.run(main())
