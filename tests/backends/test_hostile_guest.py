"""Whatever a guest says, the host refuses it with an error of ours, and keeps no more of it than it granted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddock.backends._guest import GuestConnection
from paddock.backends._guest_exec import start_foreground
from paddock.backends._guest_files import perform
from paddock.errors import FileError, GuestProtocolError, PaddockError, SandboxDied
from paddock.guest._frames import (
    MAX_WINDOW,
    VERSION,
    WINDOW,
    Kind,
    data_header,
    pack,
    pack_close,
    pack_credit,
    pack_eof,
)
from paddock.model import ExecId, ExecSpec, GrepFiles, ListFiles, ReadFile, StatFile, WatchFiles, WriteFile
from tests.orphans import none_lost

HELLO = pack(Kind.HELLO, 0, {"version": VERSION})
EXIT = {"code": 0, "signal": None, "duration_seconds": 0.1}
INFO = {
    "path": "/x",
    "kind": "file",
    "size_bytes": 1,
    "mode": 1,
    "uid": 0,
    "gid": 0,
    "modified_at": 1.5,
    "target": None,
}


def reply(channel=1, **body):
    return pack(Kind.REPLY, channel, body)


def data(content, channel=1, stream=1):
    return data_header(channel, stream, len(content)) + content


async def read_all(reader):
    parts = []
    while piece := await reader.read():
        parts.append(piece)
    return b"".join(parts)


async def run_exec(connection, **spec):
    handle = await start_foreground(connection, ExecSpec(argv=("x",), **spec), ExecId("ex_1"), None)
    try:
        if handle.stdout is not None:
            await read_all(handle.stdout)
        return await handle.wait()
    finally:
        connection.close()
        await handle.aclose()


async def run_file(connection, action, **fields):
    result = await perform(connection, action(sandbox="s", path="p", **fields))
    if hasattr(result, "read"):
        return await read_all(result)
    if hasattr(result, "write"):
        await result.write(b"x" * 100)
        return await result.aclose()
    if hasattr(result, "next"):
        return await result.next()
    return result


def against(wire, doing, *, descriptors=False):
    """What `doing` makes of a guest that says `wire` and then hangs up."""

    async def main():
        before = len(os.listdir("/proc/self/fd"))
        ours, theirs = socket.socketpair()
        try:
            connection = GuestConnection(ours)
            connection.descriptors = descriptors
            theirs.setblocking(False)
            loop = asyncio.get_running_loop()

            async def say():
                try:
                    await loop.sock_sendall(theirs, wire)
                except OSError:
                    return
                theirs.shutdown(socket.SHUT_WR)

            async with asyncio.timeout(60):
                saying = asyncio.ensure_future(say())
                try:
                    return await doing(connection)
                finally:
                    connection.close()
                    theirs.close()
                    saying.cancel()
        finally:
            ours.close()
            assert none_lost(before)

    return asyncio.run(main())


def test_a_guest_that_keeps_to_the_protocol_is_believed():
    wire = (
        HELLO + reply(pid=3) + data(b"out") + pack_eof(1, 1) + pack(Kind.EXIT, 1, EXIT) + pack_eof(1, 2) + pack_close(1)
    )
    assert against(wire, run_exec).code == 0
    assert against(HELLO + reply(**INFO) + pack_close(1), lambda c: run_file(c, StatFile)).path == "/x"


def test_a_change_that_comes_together_with_the_word_that_the_watch_is_armed_is_told():
    lines = b'{"armed":true}\n{"kind":"created","path":"a"}\n{"kind":"removed","path":"a"}\n'
    for pieces in ([lines], [lines[:20], lines[20:]], [lines[:15], lines[15:]]):
        wire = HELLO + reply() + b"".join(map(data, pieces)) + pack_close(1)
        told = against(wire, lambda c: run_file(c, WatchFiles))
        assert (told[0].kind, told[0].path) == ("created", "a")


@pytest.mark.parametrize(
    "wire",
    [
        reply(pid=3),
        pack(Kind.HELLO, 0, {"version": VERSION - 1}),
        pack(Kind.HELLO, 0, {}),
        HELLO + HELLO,
        HELLO + reply(channel=2, pid=3),
        HELLO + reply(),
        HELLO + reply(pid="3"),
        HELLO + reply(pid=3) + reply(pid=3),
        HELLO + data(b"x"),
        HELLO + pack_close(1),
        HELLO + pack(Kind.EXIT, 1, EXIT),
        HELLO + reply(pid=3) + data(b"x", stream=0),
        HELLO + reply(pid=3) + pack_eof(1, 0),
        HELLO + reply(pid=3) + pack_credit(1, 0, 1),
        HELLO + reply(pid=3) + pack_eof(1, 1) + data(b"x"),
        HELLO + reply(pid=3) + pack_eof(1, 2) + pack_eof(1, 2) + pack_eof(1, 1),
        HELLO + reply(pid=3) + pack_eof(1, 1) + pack(Kind.EXIT, 1, EXIT) + pack(Kind.EXIT, 1, EXIT),
        HELLO + reply(pid=3) + pack_eof(1, 1) + pack(Kind.EXIT, 1, {"code": 0, "signal": 9, "duration_seconds": 1}),
        HELLO + reply(pid=3) + pack_eof(1, 1) + pack(Kind.EXIT, 1, {**EXIT, "code": 300}),
        HELLO + reply(pid=3) + pack_eof(1, 1) + pack(Kind.EXIT, 1, {**EXIT, "code": None}),
        HELLO + reply(pid=3) + pack_eof(1, 1) + pack(Kind.EXIT, 1, {**EXIT, "duration_seconds": -1}),
        HELLO + pack(Kind.OPEN, 1, {}),
        HELLO + pack(Kind.CONTROL, 1, {}),
        HELLO + pack(Kind.ERROR, 1, {}),
        HELLO + pack(Kind.ERROR, 1, {"code": "policy_denied", "message": "x"}),
        HELLO + pack(Kind.ERROR, 1, {"code": "internal", "message": "x"}),
        HELLO + pack(Kind.ERROR, 1, {"code": 1, "message": "x"}),
        HELLO + b"\xff" * 100,
    ],
)
def test_a_breach_is_named_as_one(wire):
    async def doing(connection):
        handle = await start_foreground(connection, ExecSpec(argv=("x",)), ExecId("ex_1"), None)
        try:
            await handle.wait()
            await run_file(connection, StatFile)  # a breach after the result is the next caller's
        finally:
            connection.close()
            await handle.aclose()

    with pytest.raises(GuestProtocolError):
        against(wire + pack_close(9), doing)


def test_data_beyond_what_was_granted_is_a_breach():
    async def doing(connection):
        handle = await start_foreground(connection, ExecSpec(argv=("x",)), ExecId("ex_1"), None)
        await handle.wait()  # nobody reads

    wire = HELLO + reply(pid=3) + data(b"x" * (1 << 18)) * (WINDOW // (1 << 18) + 1)
    with pytest.raises(GuestProtocolError, match="beyond what was granted"):
        against(wire, doing)


def test_credit_without_end_is_a_breach():
    wire = HELLO + reply(pid=3) + pack_credit(1, 0, MAX_WINDOW) * 3
    with pytest.raises(GuestProtocolError, match="credit"):
        against(wire, lambda c: run_exec(c, stdin=True))


@pytest.mark.parametrize("action", [ListFiles, GrepFiles, WatchFiles])
@pytest.mark.parametrize(
    "content", [b"no json\n", b"[]\n", b"{}\n", b'{"path":1}\n', b"\n", b'{"path"', b"x" * 300_000]
)
def test_lines_that_are_not_results_are_a_breach(action, content):
    fields = {"pattern": "x"} if action is GrepFiles else {}
    wire = (
        HELLO + reply() + b"".join(data(content[n : n + 1000]) for n in range(0, len(content), 1000)) + pack_eof(1, 1)
    )
    with pytest.raises(GuestProtocolError):
        against(wire, lambda c: run_file(c, action, **fields))


def test_a_guest_that_hangs_up_is_a_sandbox_that_died():
    for wire in (b"", HELLO, HELLO + reply(pid=3)):
        with pytest.raises(SandboxDied):
            against(wire, run_exec)


def test_an_error_that_a_guest_may_report_is_raised_with_its_errno():
    wire = HELLO + pack(Kind.ERROR, 1, {"code": "file", "message": "no", "errno": "ENOENT"})
    with pytest.raises(FileError) as caught:
        against(wire, lambda c: run_file(c, StatFile))
    assert caught.value.details["errno"] == "ENOENT"


def test_descriptors_from_a_guest_never_arrive():
    async def main():
        ours, theirs = socket.socketpair()
        reader, writer = os.pipe()
        connection = GuestConnection(ours)
        socket.send_fds(theirs, [HELLO + reply(**INFO) + pack_close(1)], [writer])
        os.close(writer)
        await run_file(connection, StatFile)
        assert os.read(reader, 1) == b""
        os.close(reader)
        connection.close()
        theirs.close()

    asyncio.run(main())


channel = st.integers(1, 2)
odd = st.one_of(st.none(), st.integers(-9, 999), st.text(max_size=5), st.just([]), st.just({}))
bodies = st.one_of(
    st.just({"pid": 3}),
    st.just(EXIT),
    st.just(INFO),
    st.just({"truncated": False}),
    st.dictionaries(st.sampled_from(["pid", "code", "signal", "path", "kind", "message", "truncated"]), odd),
)
errors = st.fixed_dictionaries({"code": st.sampled_from(["file", "sandbox", "internal"]) | odd, "message": odd})
contents = st.sampled_from([b"x", b"x" * 70_000, b'{"path":"/x","kind":"file"}\n', b'{"armed":true}\n', b"{}\n"])
said = st.one_of(
    st.builds(lambda c, b: pack(Kind.REPLY, c, b), channel, bodies),
    st.builds(lambda c, b: pack(Kind.EXIT, c, b), channel, bodies),
    st.builds(lambda c, b: pack(Kind.ERROR, c, b), channel, errors),
    st.builds(lambda c, s, d: data(d, c, s), channel, st.integers(0, 2), contents),
    st.builds(pack_eof, channel, st.integers(0, 2)),
    st.builds(pack_credit, channel, st.integers(0, 2), st.integers(1, MAX_WINDOW)),
    st.builds(pack_close, channel),
    st.binary(max_size=20),
)
doings = st.sampled_from(
    [
        run_exec,
        lambda c: run_exec(c, stdin=True),
        lambda c: run_file(c, ReadFile),
        lambda c: run_file(c, WriteFile),
        lambda c: run_file(c, StatFile),
        lambda c: run_file(c, ListFiles),
        lambda c: run_file(c, WatchFiles),
    ]
)


@settings(deadline=None)
@given(st.lists(said, max_size=10), doings, st.booleans(), st.booleans())
def test_any_talk_ends_in_a_result_or_an_error_of_ours(sequence, doing, begins_well, descriptors):
    wire = HELLO + (reply(pid=3) if begins_well else b"") + b"".join(sequence)
    with contextlib.suppress(PaddockError, BrokenPipeError):
        against(wire, doing, descriptors=descriptors)
