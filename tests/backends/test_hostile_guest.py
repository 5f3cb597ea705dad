"""Whatever a guest says or leaves unsaid, the host bounds it: garbage, floods, silence."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import socket
import threading
import weakref
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddock.backends.guest import PING, GuestDefaults, _frames
from paddock.backends.guest._files import MAX_RESULT_BYTES
from paddock.backends.guest.connection import _MOST_REQUESTS, GuestConnection
from paddock.backends.guest.exec import execs, signal_request, start_background, start_foreground
from paddock.backends.pump import Journal
from paddock.errors import (
    FileError,
    GuestLostError,
    GuestProtocolError,
    InvalidArgumentError,
    PaddockError,
    SandboxDiedError,
    SandboxError,
)
from paddock.model import (
    ConnectPort,
    ExecId,
    ExecSpec,
    FindFiles,
    GrepFiles,
    PtySize,
    ReadFile,
    SetFileAttributes,
    StatFile,
)
from paddock.wire import WireError
from paddock.wire.guest import (
    VERSION,
    AttachReply,
    Change,
    EndedFlags,
    Error,
    ExecReply,
    ExecsReply,
    Exit,
    File,
    Kind,
    Limit,
    Listed,
    Match,
    Op,
    PingReply,
    ReadReply,
    Walked,
)
from tests import frames, skipped_time
from tests.backends.peers import (
    CALLS,
    CLOSE,
    EOF,
    EXAMPLES,
    EXIT,
    HEADER,
    ID,
    INFO,
    RUNS,
    UNDER_WAY,
    WALKED,
    Call,
    Peer,
    data,
    file,
    foreground,
    hello,
    lying,
    reply,
    row,
)
from tests.orphans import none_lost, wait_until


async def consumed(result: Any) -> None:
    if hasattr(result, "read"):
        while await result.read():
            pass
    elif hasattr(result, "next"):
        while await result.next():
            pass
    elif hasattr(result, "wait"):
        try:
            while result.stdout is not None and await result.stdout.read():
                pass
            await result.wait()
        finally:
            await result.aclose()


def answered(wire: bytes, call: Call, *, greeting: bytes = b"", descriptors: bool = False) -> None:
    """The guest says `wire` to the first request, and then hangs up."""

    async def serve(peer: Peer, channel: int, code: int) -> None:
        if channel == 1:
            await peer.say(wire)
            peer._socket.shutdown(socket.SHUT_WR)

    async def main() -> None:
        async with lying(serve, greeting, descriptors=descriptors) as (connection, _):
            await consumed(await call(connection))
            if connection.closed:
                raise await connection.why()

    asyncio.run(main())


def raw(kind: int, *, length: int = 0, code: int = 0, channel: int = 1, descriptors: int = 0, zeros: int = 0) -> bytes:
    return HEADER.pack(length, kind, code, channel, descriptors, 0, zeros)


def _fixed(message: Any, *fields: Any) -> bytes:
    """A message with fields that `pack` would refuse."""
    body = message.pack()
    for tag, value in zip(fields[::2], fields[1::2], strict=True):
        body += Struct("<HHI").pack(tag, 0, len(value)) + value + bytes(-len(value) % 8)
    return body


GARBAGE = {
    "an unknown kind": ("stat", raw(11)),
    "a request of its own": ("stat", raw(Kind.OPEN)),
    "an order": ("stat", raw(8)),
    "descriptors": ("stat", raw(Kind.REPLY, descriptors=1)),
    "bytes that are not zero": ("stat", raw(Kind.REPLY, zeros=1)),
    "a body without an end": ("stat", raw(Kind.REPLY, length=Limit.BODY + 1)),
    "a code where there is none": ("stat", raw(Kind.REPLY, code=1)),
    "an unknown stream": ("read", reply(ReadReply().pack()) + raw(Kind.EOF, code=3)),
    "a channel that was not opened": ("stat", raw(Kind.REPLY, channel=9)),
    "no channel": ("stat", raw(Kind.REPLY, channel=0)),
    "a second greeting": ("stat", hello()),
    "data before the answer": ("read", data(b"x")),
    "data of no bytes": ("read", reply(ReadReply().pack()) + raw(Kind.DATA, code=1)),
    "data on its stdin": ("exec", reply(ExecReply(pid=1).pack()) + data(b"x", stream=0)),
    "the end of a stdin that was not wanted": ("exec", reply(ExecReply(pid=1).pack()) + frames.eof(1, 0)),
    "data after its end": ("exec", reply(ExecReply(pid=1).pack()) + EOF + data(b"x")),
    "a second end": ("exec", reply(ExecReply(pid=1).pack()) + EOF + frames.eof(1, 2) * 2),
    "a result before the answer": ("exec", EXIT),
    "credit without a stdin": ("exec", reply(ExecReply(pid=1).pack()) + frames.credit(1, 0, 1)),
    "more credit than there can be": ("write", reply() + frames.credit(1, 0, Limit.CREDIT) * 2),
    "a code that no kernel reports": ("exec", RUNS + frames.pack(Kind.EXIT, 1, Exit(code=300).pack())),
    "neither a code nor a signal": ("exec", RUNS + frames.pack(Kind.EXIT, 1, Exit(code=-1).pack())),
    "a limit of which it knows nothing": (
        "exec",
        RUNS + frames.pack(Kind.EXIT, 1, Exit(code=1, ended=int(EndedFlags.MEMORY)).pack()),
    ),
    "a path longer than any": ("stat", reply(_fixed(File(kind=1), 1, b"/box/" + b"x" * 4096)) + CLOSE),
    "a target longer than any": ("stat", reply(_fixed(File(kind=3), 1, b"/box/x", 2, b"x" * 5000)) + CLOSE),
    "credit of nothing": ("write", reply() + frames.credit(1, 0, 0)),
    "credit for what is not sent": ("read", reply(ReadReply().pack()) + frames.credit(1, 1, 5)),
    "credit without end": ("stat", frames.credit(1, 0, Limit.CREDIT + 1)),
    "an end with a body": ("stat", raw(Kind.CLOSE, length=1) + b"x"),
    "an end in place of an answer": ("stat", CLOSE),
    "a second answer": ("stat", reply(INFO) * 2),
    "an answer of another shape": ("stat", reply(b"\1" * 16)),
    "an answer with more": ("signal", reply(b"\0" * 8)),
    "an unknown kind of file": ("stat", reply(File(kind=9, path=b"/box/x").pack()) + CLOSE),
    "a file of elsewhere": ("stat", reply(File(kind=1, path=b"/boxes/x").pack()) + CLOSE),
    "an error that no kernel has": ("stat", frames.pack(Kind.ERROR, 1, Error(errno=4000).pack())),
    "no error": ("stat", frames.pack(Kind.ERROR, 1, Error(errno=0).pack())),
    "a malformed error": ("stat", frames.pack(Kind.ERROR, 1, b"x")),
    "a code and a signal": ("exec", RUNS + frames.pack(Kind.EXIT, 1, Exit(signal=9).pack())),
    "a second exit": ("exec", RUNS + EXIT * 2),
    "an unknown change": ("watch", reply() + data(row(Change(kind=9, path=b"/box/x")))),
    "a row of no bytes": ("list", reply() + data(bytes(4))),
    "a row without an end": ("list", reply() + data(b"\xff\xff\xff\x7f")),
    "half a row": ("list", reply() + data(b"\x10\0\0\0xx") + EOF + WALKED + CLOSE),
    "bytes without an end": ("read", reply(ReadReply(size=9).pack()) + data(b"half") + CLOSE),
    "a row of another shape": ("list", reply() + data(b"\x10\0\0\0" + b"x" * 16)),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_what_is_not_the_protocol_ends_the_connection(what: str) -> None:
    name, wire = GARBAGE[what]
    with pytest.raises(GuestProtocolError):
        answered(wire, CALLS[name])


@pytest.mark.parametrize("ended", [EOF, b""], ids=["at its end", "in the middle"])
@pytest.mark.parametrize("name", ["read", "download"])
def test_a_read_that_broke_off_is_not_taken_for_the_whole_file(name: str, ended: bytes) -> None:
    answer = ReadReply(size=9).pack() if name == "read" else b""
    failed = frames.pack(Kind.ERROR, 1, Error(errno=errno.EIO, step=b"read").pack())
    with pytest.raises(FileError, match="Input/output error"):
        answered(reply(answer) + data(b"half") + ended + failed, CALLS[name])


@pytest.mark.parametrize("greeting", [hello(VERSION + 1), CLOSE, frames.pack(Kind.HELLO, 0, b"x")])
def test_a_guest_of_another_version_is_not_talked_to(greeting: bytes) -> None:
    with pytest.raises(GuestProtocolError):
        answered(b"", CALLS["stat"], greeting=greeting)


def poured(call: Call, answer: bytes, piece: bytes, most: int, *, descriptors: bool = False) -> None:
    """The guest says `piece` for ever, and the host takes no more of it than so many bytes."""
    taken = 0

    async def serve(peer: Peer, channel: int, code: int) -> None:
        if channel == 1:
            await peer.say(reply(answer))
            await peer.pour(piece)

    async def main() -> None:
        nonlocal taken
        async with lying(serve, descriptors=descriptors) as (connection, peer):
            try:
                await consumed(await call(connection))
            finally:
                taken = peer.said

    try:
        asyncio.run(main())
    finally:
        assert taken <= most + UNDER_WAY


def test_results_without_an_end_are_cut_off() -> None:
    piece = row(File(kind=1, path=b"/box/" + b"x" * 4000)) * 15
    with pytest.raises(FileError, match="too much to list"):
        poured(CALLS["list"], b"", piece, MAX_RESULT_BYTES)


@pytest.mark.parametrize(
    ("name", "piece"),
    [("find", row(File(kind=1, path=b"/box/x"))), ("grep", row(Match(line_number=1, path=b"/box/x", line=b"x")))],
)
def test_more_items_than_were_asked_for_are_refused(name: str, piece: bytes) -> None:
    with pytest.raises(GuestProtocolError, match="more results"):
        poured(CALLS[name], b"", piece * 11, Limit.WINDOW)


@pytest.mark.parametrize("descriptors", [False, True])
def test_more_bytes_than_were_asked_for_are_refused(descriptors: bool) -> None:
    with pytest.raises(GuestProtocolError, match="more bytes"):
        poured(CALLS["read"], ReadReply(size=10).pack(), b"x" * 1001, Limit.WINDOW, descriptors=descriptors)


def test_more_data_than_was_granted_is_refused() -> None:
    wire = reply() + data(b"x" * Limit.BODY) * (Limit.WINDOW // Limit.BODY + 1)

    async def unread(connection: GuestConnection) -> Any:
        reader = await CALLS["download"](connection)
        await execs(connection)
        return reader

    with pytest.raises(GuestProtocolError, match="beyond what was granted"):
        answered(wire, unread)


def test_a_list_of_commands_without_an_end_is_refused() -> None:
    listed = Listed(number=1, pid=1, id=b"ex_1", argv=(b"x",))

    async def serve(peer: Peer, channel: int, code: int) -> None:
        body = ExecsReply(before=1, execs=(listed,) * 100).pack()
        await peer.say(frames.pack(Kind.REPLY, channel, body) + frames.close(channel))

    async def main() -> None:
        async with lying(serve) as (connection, peer):
            with pytest.raises(SandboxError, match="more commands"):
                await CALLS["execs"](connection)
            assert len(peer.opened) == 64

    asyncio.run(main())


def test_a_write_that_is_refused_on_the_way_waits_for_the_reason() -> None:
    """The guest reads no more before it has said why."""
    asked = asyncio.Event()

    async def serve(peer: Peer, channel: int, code: int) -> None:
        await peer.say(reply() + frames.eof(1, 0))
        await asked.wait()
        await peer.say(frames.pack(Kind.ERROR, 1, Error(errno=errno.ENOSPC, step=b"write").pack()))

    async def main() -> None:
        async with lying(serve) as (connection, _):
            writer = await CALLS["write"](connection)
            writing = asyncio.ensure_future(writer.write(b"x"))
            asyncio.get_running_loop().call_soon(asked.set)
            with pytest.raises(FileError) as caught:
                await writing
            assert caught.value.details["errno"] == "ENOSPC"

    asyncio.run(main())


async def pings(peer: Peer, channel: int, code: int) -> None:
    if code == Op.PING:
        await peer.answer(channel, PingReply(pid=7).pack())


async def silence(peer: Peer, channel: int, code: int) -> None:
    pass


@pytest.fixture
def little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than `lying` has. Its tests skip it: no delay of the machine costs a ping its answer."""
    for name in ("patience_seconds", "answer_seconds", "work_seconds"):
        monkeypatch.setattr(GuestConnection, name, 2.0)


@pytest.mark.usefixtures("little_time")
@pytest.mark.parametrize(
    ("serve", "words"), [(pings, "answers, but has not done"), (silence, "has not answered")], ids=["pings", "silent"]
)
def test_no_call_waits_for_ever(serve: Callable[[Peer, int, int], Awaitable[None]], words: str) -> None:
    async def error_of(call: Call) -> BaseException | None:
        async with lying(serve) as (connection, _):
            try:
                await call(connection)
            except PaddockError as error:
                return error
        return None

    async def main() -> None:
        calls = {name: call for name, call in CALLS.items() if name != "accept"}  # it waits for somebody to come
        errors = await asyncio.gather(*map(error_of, calls.values()))
        for name, error in zip(calls, errors, strict=True):
            assert isinstance(error, GuestLostError), (name, error)
            assert words in error.message, (name, error)

    skipped_time.run(main())


def test_one_request_more_than_the_guest_takes_is_refused_and_costs_nobody_the_connection() -> None:
    async def main() -> None:
        async with lying(pings) as (connection, _):
            for _ in range(_MOST_REQUESTS):
                connection.open(signal_request(ID, 1))
            with pytest.raises(SandboxError, match="requests to one sandbox"):
                connection.open(signal_request(ID, 1))
            await connection.open(PING).call(PingReply)

    asyncio.run(main())


def test_what_cannot_be_said_is_refused_before_it_is_sent() -> None:
    wrong: list[Call] = [
        file(StatFile, path=""),
        file(StatFile, path="a\0b"),
        file(StatFile, path="\ud800"),
        file(SetFileAttributes, path="p", uid=1 << 32),
        file(FindFiles, path="p", limit=-1),
        file(ReadFile, path="p", offset=1 << 64),
        lambda connection: foreground(connection, env={"A=B": "c"}),
        lambda connection: foreground(connection, env={"A": "c\0"}),
        lambda connection: foreground(connection, pty=PtySize(rows=1 << 16)),
        lambda connection: start_background(connection, ExecSpec(argv=("x",), timeout_seconds=-1), ID, None),
        lambda connection: start_foreground(connection, ExecSpec(argv=("x",)), ExecId("x" * 65), None),
        file(GrepFiles, path="p", pattern="x" * 9000),
        file(ConnectPort, port=0),
        file(ConnectPort, port=1 << 16),
    ]

    async def main() -> None:
        async with lying(silence) as (connection, peer):
            for call in wrong:
                with pytest.raises(InvalidArgumentError):
                    await call(connection)
            with pytest.raises(FileError) as caught:
                await file(StatFile, path="x" * 5000)(connection)
            assert caught.value.details["errno"] == errno.errorcode[errno.ENAMETOOLONG]
            assert not peer.opened

    asyncio.run(main())


STREAMED = reply(ExecReply(pid=3).pack()) + data(b"out" * 50) + data(b"err", stream=2) + frames.credit(1, 0, 4096)
STREAMED += EOF + frames.eof(1, 2) + EXIT + CLOSE
LISTED = reply() + data(row(File(kind=1, path=b"/box/x")) * 5) + EOF + WALKED + CLOSE
MATCHED = reply() + data(row(Match(line_number=1, path=b"/box/x", line=b"x"))) + EOF + WALKED + CLOSE
TALKS = {
    "exec": STREAMED,
    "terminal": STREAMED,
    "attach": reply(AttachReply(pid=3).pack()) + STREAMED[len(reply(ExecReply(pid=3).pack())) :],
    "stat": reply(INFO) + CLOSE,
    "list": LISTED,
    "find": LISTED,
    "grep": MATCHED,
    "watch": reply() + data(row(Change(kind=1, path=b"/box/x"))) + EOF + CLOSE,
    "read": reply(ReadReply(size=9).pack()) + data(b"123456789") + EOF + CLOSE,
    "execs": reply(ExecsReply(execs=(Listed(number=1, pid=1, id=b"ex_1", argv=(b"x",)),)).pack()) + CLOSE,
    "copy": reply() + frames.pack(Kind.EXIT, 1, INFO) + CLOSE,
}
_TELLING = (b"\0", b"\xff" * 4, bytes(4), bytes(8), b"\1\0\0\0", b"\0\0\1\0", b"/box", b"\x7f")


def damaged(wire: bytes, choose: random.Random) -> bytes:
    work = bytearray(wire)
    for _ in range(choose.choice((1, 1, 1, 2, 3, 8))):
        at = choose.randrange(len(work) + 1)
        length = choose.choice((1, 1, 2, 4, 9, 40))
        match choose.randrange(5):
            case 0:
                work[at : at + 1] = bytes([choose.randrange(256)])
            case 1:
                del work[at : at + length]
            case 2:
                work[at:at] = work[at : at + length]
            case 3:
                work[at:at] = choose.choice(_TELLING)
            case _:
                work[at : at + 4] = choose.choice((b"\0\0\0\1", b"\0\4\0\x40", b"\x7f\xff\xff\xff"))
    return bytes(work)


@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("descriptors", [False, True])
def test_a_damaged_conversation_ends_in_a_result_or_an_error_of_ours(talk: str, descriptors: bool) -> None:
    choose = random.Random(f"{talk} {descriptors}")
    for _ in range(EXAMPLES):
        with contextlib.suppress(PaddockError, BrokenPipeError):
            answered(damaged(TALKS[talk], choose), CALLS[talk], descriptors=descriptors)


def test_damaged_frames_are_read_or_refused_in_little_memory() -> None:
    choose = random.Random("frames")
    for _ in range(20_000):
        decoder = _frames.inbox()
        wire = damaged(choose.choice(list(TALKS.values())), choose)
        step = choose.choice((1, 7, 100, 1 << 16))
        with contextlib.suppress(WireError):
            for at in range(0, len(wire), step):
                for frame in decoder.feed(wire[at : at + step]):
                    _frames.require_sound(frame)
        assert len(decoder._buffer) <= Limit.BODY + HEADER.size


# the operations of the host that are put to an agent
ASKED = {op for op in Op if op < Op.IDENTITY} - {Op.ECHO, Op.HAND}


class _Nowhere:
    """Holds nothing of a command."""

    def journal(self) -> Journal:
        return Journal(os.memfd_create("journal"))

    async def put(self, command: ExecId, descriptors: tuple[int, ...]) -> None: ...

    async def get(self, command: ExecId) -> tuple[int, ...]:
        return ()


def test_every_operation_is_tried() -> None:
    asked: set[int] = {Op.PING}

    async def serve(peer: Peer, channel: int, code: int) -> None:
        asked.add(code)
        if code in (Op.EXEC, Op.ATTACH) and channel == 1:
            await peer.answer(channel, ExecReply(pid=1).pack())
        elif code == Op.MOVE:
            await peer.say(frames.pack(Kind.ERROR, channel, Error(errno=errno.EXDEV).pack()))
        else:
            await peer.say(frames.pack(Kind.ERROR, channel, Error(errno=errno.EIO).pack()))

    async def runs(peer: Peer, channel: int, code: int) -> None:
        if code == Op.EXEC:
            await peer.say(frames.pack(Kind.REPLY, channel, ExecReply(pid=1).pack()))
        else:
            await serve(peer, channel, code)

    async def main() -> None:
        for call in CALLS.values():
            async with lying(serve) as (connection, _):
                with contextlib.suppress(PaddockError):
                    await call(connection)
        for held in (lambda handle: handle.kill(), lambda handle: handle.resize(PtySize())):
            async with lying(serve) as (connection, _):
                with contextlib.suppress(PaddockError):
                    await held(await CALLS["terminal"](connection))

        async with lying(runs, descriptors=True) as (connection, _):
            handle = await start_foreground(connection, ExecSpec(argv=("x",)), ID, None, _Nowhere())
            with contextlib.suppress(PaddockError):
                await handle.keep(None)
            handle.abandon()

    asyncio.run(main())
    assert asked == ASKED


def test_a_command_that_ends_while_it_is_to_be_kept_is_not_kept() -> None:
    begun, ended = threading.Event(), threading.Event()
    journals: list[weakref.ref[Journal]] = []

    class Slow(_Nowhere):
        def journal(self) -> Journal:
            begun.set()
            assert ended.wait(60)
            journal = super().journal()
            journals.append(weakref.ref(journal))
            return journal

        async def put(self, command: ExecId, descriptors: tuple[int, ...]) -> None:
            raise AssertionError("kept")

    async def started(peer: Peer, channel: int, code: int) -> None:
        await peer.say(frames.pack(Kind.REPLY, channel, ExecReply(pid=1).pack()))

    async def main() -> None:
        async with lying(started, descriptors=True) as (connection, _):
            handle = await start_foreground(connection, ExecSpec(argv=("x",)), ID, None, Slow())
            keeping = asyncio.ensure_future(handle.keep(None))
            await asyncio.to_thread(begun.wait)
            handle._finish_pipes()
            ended.set()
            await keeping
            assert len(journals) == 2
            # A thread of the pool lets go of its last result a moment after it has told it.
            assert await asyncio.to_thread(wait_until, lambda: not any(journal() for journal in journals))
            handle.abandon()

    asyncio.run(main())


def test_a_guest_that_hangs_up_is_a_sandbox_that_died() -> None:
    for wire in (b"", reply(ExecReply(pid=3).pack())):
        with pytest.raises(SandboxDiedError):
            answered(wire, CALLS["exec"])


def test_descriptors_from_a_guest_never_arrive() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        reader, writer = os.pipe()
        connection = GuestConnection(ours, GuestDefaults(workdir="/w", env={}, root="/box"))
        socket.send_fds(theirs, [hello() + reply(INFO) + CLOSE], [writer])
        os.close(writer)
        await CALLS["stat"](connection)
        assert os.read(reader, 1) == b""
        os.close(reader)
        connection.close()
        theirs.close()

    asyncio.run(main())


UNREAD = {"download": 1, "connect": 1, "output": 1, "attach": 2, "exec": 2, "accept": 1}
"""Streams without an end of their own, by their number: what nobody reads stays where it is."""
ANSWERS = {
    "exec": ExecReply(pid=1).pack(),
    "attach": AttachReply(pid=1).pack(),
    "output": AttachReply(pid=1).pack(),
    "read": ReadReply(size=9).pack(),
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_nobody_reads_stays_inside(name: str) -> None:
    async def main() -> None:
        async def serve(peer: Peer, channel: int, code: int) -> None:
            await peer.say(reply(ANSWERS.get(name, b"")))
            await peer.pour(b"x" * Limit.BODY)

        async with lying(serve) as (connection, peer):
            result = await CALLS[name](connection)
            await peer.full.wait()
            assert peer.said <= UNREAD[name] * Limit.WINDOW
            del result

    asyncio.run(main())


def test_changes_come_by_small_heaps() -> None:
    change = row(Change(kind=1, path=b"/box/x"))

    async def serve(peer: Peer, channel: int, code: int) -> None:
        await peer.say(reply())
        await peer.pour(change * 1000)

    async def main() -> None:
        async with lying(serve) as (connection, peer):
            changes = await CALLS["watch"](connection)
            heard = 0
            while heard < 8 * Limit.WINDOW:
                heap = await changes.next()
                assert 0 < len(heap) * len(change) <= 2 * Limit.BODY
                heard += len(heap) * len(change)
                assert peer.said <= heard + 2 * UNDER_WAY

    asyncio.run(main())


@pytest.mark.parametrize("way", ["close", "give_up"])
def test_requests_that_are_never_ended_are_so_many_at_most(way: str) -> None:
    async def serve(peer: Peer, channel: int, code: int) -> None:
        await peer.say(frames.pack(Kind.REPLY, channel) + frames.pack(Kind.EXIT, channel, b"x" * 1000))

    async def main() -> None:
        async with lying(serve) as (connection, peer):
            for _ in range(_MOST_REQUESTS):
                channel = connection.open(signal_request(ID, 1))
                channel.give_up(GuestLostError("x")) if way == "give_up" else channel.close()
                await connection.drain()
            with pytest.raises(SandboxError, match="requests to one sandbox"):
                connection.open(signal_request(ID, 1))
            assert len(peer.opened) <= _MOST_REQUESTS

    asyncio.run(main())


def test_what_is_said_to_a_request_that_was_let_go_of_is_not_kept() -> None:
    async def main() -> None:
        told = asyncio.Event()

        async def serve(peer: Peer, channel: int, code: int) -> None:
            if channel == 1:
                await told.wait()
                await peer.say(reply() + frames.pack(Kind.EXIT, 1, INFO))
            else:
                await peer.answer(channel, INFO)

        async with lying(serve) as (connection, _):
            channel = connection.open(signal_request(ID, 1))
            channel.close()
            told.set()
            await CALLS["stat"](connection)
            with pytest.raises(SandboxError, match="let go of"):
                await channel.result(File)

    asyncio.run(main())


def test_requests_that_a_guest_does_not_read_wait_up_to_a_bound() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        connection = GuestConnection(ours, GuestDefaults(workdir="/w", env={}))
        request = PING._replace(op=Op.EXEC, body=bytes(2 << 20))
        with theirs:
            for _ in range(33):
                connection.open(request)
            with pytest.raises(GuestLostError, match="does not read"):
                connection.open(request)
        connection.close()

    asyncio.run(main())


async def begins(peer: Peer, channel: int, code: int) -> None:
    """And does not go on."""
    if code == Op.PING:
        await pings(peer, channel, code)
    else:
        answers = {Op.EXEC: ExecReply(pid=1), Op.ATTACH: AttachReply(pid=1), Op.READ: ReadReply(size=9)}
        await peer.say(frames.pack(Kind.REPLY, channel, answers[code].pack() if code in answers else b""))


async def _overfill(writer: Any) -> None:
    while True:
        await writer.write(bytes(1 << 18))


GOES_ON: dict[str, tuple[str, Callable[[Any], Awaitable[Any]]]] = {
    "read": ("read", lambda reader: reader.read()),
    "download": ("download", lambda reader: reader.read()),
    "output": ("output", lambda reader: reader.read()),
    "write": ("write", lambda writer: writer.aclose()),
    "upload": ("upload", lambda writer: writer.aclose()),
    "write, more": ("write", _overfill),
    "upload, more": ("upload", _overfill),
    **{name: (name, lambda result: asyncio.sleep(0)) for name in ("copy", "list", "find", "grep")},
}


@pytest.mark.usefixtures("little_time")
def test_nothing_that_was_begun_waits_for_ever() -> None:
    async def error_of(name: str, go_on: Callable[[Any], Awaitable[Any]]) -> BaseException | None:
        async with lying(begins) as (connection, _):
            try:
                await go_on(await CALLS[name](connection))
            except PaddockError as error:
                return error
        return None

    async def main() -> None:
        errors = await asyncio.gather(*(error_of(*how) for how in GOES_ON.values()))
        for name, error in zip(GOES_ON, errors, strict=True):
            assert isinstance(error, GuestLostError), (name, error)
            assert "answers, but has not done" in error.message, (name, error)

    skipped_time.run(main())


async def disobeys(peer: Peer, channel: int, code: int) -> None:
    await (silence if code in (Op.KILL, Op.RESIZE) else begins)(peer, channel, code)


@pytest.mark.usefixtures("little_time")
@pytest.mark.parametrize("way", ["kill", "aclose"])
@pytest.mark.parametrize("start", ["exec", "terminal"])
def test_who_does_not_end_a_command_is_cut_off(start: str, way: str) -> None:
    async def main() -> None:
        async with lying(disobeys) as (connection, _):
            handle = await CALLS[start](connection)
            with pytest.raises(GuestProtocolError, match="was not ended in 2 s") as caught:
                await (handle.kill() if way == "kill" else handle.aclose())
            assert caught.value.details["unended"] == handle.id
            assert connection.closed
            with pytest.raises(SandboxError):
                await handle.wait()

    skipped_time.run(main())


@pytest.mark.usefixtures("little_time")
def test_a_terminal_that_is_not_sized_is_told() -> None:
    async def main() -> None:
        async with lying(disobeys) as (connection, _):
            handle = await CALLS["terminal"](connection)
            with pytest.raises(GuestLostError, match="answers, but has not done"):
                await handle.resize(PtySize())

    skipped_time.run(main())


_bodies = st.one_of(
    *(
        st.just(message.pack())
        for message in (ExecReply(pid=3), Exit(code=0, duration=1), ReadReply(size=9), Error(errno=2), Walked())
    ),
    st.just(INFO),
    st.just(b""),
    st.binary(max_size=60),
)
_contents = st.sampled_from([b"x", b"x" * Limit.BODY, row(File(kind=1, path=b"/box/x")), row(Change(kind=1)), bytes(4)])
_channels, _streams = st.integers(1, 2), st.integers(0, 2)
_said = st.one_of(
    st.builds(
        lambda kind, channel, body: frames.pack(kind, channel, body),
        st.sampled_from([Kind.REPLY, Kind.EXIT, Kind.ERROR]),
        _channels,
        _bodies,
    ),
    st.builds(frames.data, _channels, _streams, _contents),
    st.builds(frames.eof, _channels, _streams),
    st.builds(frames.credit, _channels, _streams, st.integers(1, Limit.CREDIT)),
    st.builds(frames.close, _channels),
    st.binary(max_size=20),
)


@settings(deadline=None)
@given(st.lists(_said, max_size=10), st.sampled_from(sorted(CALLS.keys() - {"accept"})), st.booleans(), st.booleans())
def test_any_talk_ends_in_a_result_or_an_error_of_ours(
    sequence: list[bytes], name: str, begins_well: bool, descriptors: bool
) -> None:
    wire = (reply(ANSWERS.get(name, b"")) if begins_well else b"") + b"".join(sequence)
    before = len(os.listdir("/proc/self/fd"))
    with contextlib.suppress(PaddockError, BrokenPipeError):
        answered(wire, CALLS[name], descriptors=descriptors)
    assert none_lost(before)
