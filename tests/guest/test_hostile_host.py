"""Whatever comes over a connection, the agent drops that connection at most, and serves the next."""

from __future__ import annotations

import array
import contextlib
import os
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddock.guest._frames import (
    MAX_WINDOW,
    VERSION,
    WINDOW,
    Decoder,
    Kind,
    data_header,
    pack,
    pack_close,
    pack_credit,
    pack_eof,
)
from tests.guest.agents import AgentProcess

HELLO = pack(Kind.HELLO, 0, {"version": VERSION})


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    # Confined: the requests are made up, and may ask to remove or close anything.
    process = AgentProcess(Path(tmp_path_factory.mktemp("agent")), confined=True)
    (process.home / "file").write_bytes(b"x" * 100)
    yield process
    process.stop()


@contextlib.contextmanager
def dialled(target):
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(20)
        stream.connect(str(target.socket))
        yield stream


def talk(stream, wire):
    """Sends all and closes that half; what the agent says until it closes. A reset is an answer too."""
    frames = []
    decoder = Decoder()
    with contextlib.suppress(ConnectionError):
        stream.sendall(wire)
        stream.shutdown(socket.SHUT_WR)
    with contextlib.suppress(ConnectionError):
        while data := stream.recv(65536):
            frames += decoder.feed(data)  # what the agent says is well-formed, always
    return frames


def assert_serves(target):
    with dialled(target) as stream:
        stream.sendall(HELLO + pack(Kind.OPEN, 1, {"op": "ping"}))
        decoder, frames = Decoder(), []
        while len(frames) < 3:
            data = stream.recv(65536)
            assert data
            frames += decoder.feed(data)
    assert [frame.kind for frame in frames] == [Kind.HELLO, Kind.REPLY, Kind.CLOSE]
    assert frames[1].body["pid"] == target.process.pid


names = st.sampled_from(["file", ".", "none", "a/b", "\udcff", "", "\0", "x" * 5000, "..", "\ud800"])
wild = st.sampled_from([-1, 1 << 20, 1 << 31, 1 << 32, 1 << 63, -(1 << 63), 10**19, 0.5, 1e308, -1e308, "x" * 300_000])
odd = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 1 << 40), wild, names, st.lists(names, max_size=2), st.just({})
)
short = odd.filter(lambda value: value != "x" * 300_000)  # only an OPEN may hold so much
WORDS = """exec attach kill_exec signal execs ping read write stat list find grep mkdir set remove remove_tree
copy move move_tree upload download watch connect accept resize nosuch"""
operations = st.sampled_from(WORDS.split())
fields = {
    "id": st.sampled_from(["a", "b", "c"]) | odd,
    "argv": st.sampled_from([["true"], ["cat"], ["sh", "-c", "echo x"], ["nosuch"]]) | odd,
    "path": st.sampled_from(["file", "new/file", "none"]) | odd,
    "stdin": st.booleans() | odd,
    "background": st.booleans() | odd,
    "pty": st.just({"rows": 2, "columns": 3}) | st.dictionaries(st.sampled_from(["rows", "columns"]), odd) | odd,
    "env": st.just({"A": "b"}) | st.dictionaries(names, odd, max_size=2) | odd,
    "pattern": st.sampled_from(["x", "("]) | odd,
    **{key: odd for key in ("cwd", "user", "fds", "signal", "offset", "length")},  # noqa: C420
    **{key: odd for key in ("mode", "depth", "limit", "name", "port")},  # noqa: C420
    **{key: odd for key in ("rows", "columns", "uid", "gid", "timeout_seconds")},  # noqa: C420
    **{key: odd for key in ("append", "parents", "follow", "recursive", "missing_ok")},  # noqa: C420
    **{key: st.sampled_from(["file", "none"]) | odd for key in ("source", "destination")},
}
requests = st.builds(lambda op, rest: {"op": op} | rest, operations | odd, st.fixed_dictionaries({}, optional=fields))
channel = st.integers(1, 6)
orders = st.sampled_from(
    [
        *({"order": "nosuch"}, {"order": "signal", "signal": -1}, {"order": "resize", "rows": -1, "columns": 1 << 20}),
        *({"order": "kill"}, {"order": "signal", "signal": 15}, {"order": "resize", "rows": 1, "columns": 1}),
    ]
)
moves = st.one_of(
    st.builds(lambda c, b: pack(Kind.OPEN, c, b), channel, requests),
    st.builds(lambda c, s, n: data_header(c, s, n) + b"d" * n, channel, st.integers(0, 2), st.integers(1, 70000)),
    st.builds(pack_eof, channel, st.integers(0, 2)),
    st.builds(pack_credit, channel, st.integers(0, 2), st.integers(1, MAX_WINDOW)),
    st.builds(pack_close, channel),
    st.builds(lambda c, b: pack(Kind.CONTROL, c, b), channel, orders | st.dictionaries(st.just("order"), short)),
    st.builds(lambda k, c: pack(k, c, {}), st.sampled_from([Kind.REPLY, Kind.ERROR, Kind.EXIT]), channel),
    st.just(HELLO),
)
quick = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@quick
@given(st.lists(moves, max_size=12))
def test_any_order_of_frames(target, sequence):
    with dialled(target) as stream:
        talk(stream, HELLO + b"".join(sequence))
    assert_serves(target)


@quick
@given(st.lists(requests, max_size=8))
def test_any_requests_are_answered_one_by_one(target, sequence):
    wire = b"".join(
        pack(Kind.OPEN, number, {**body, "fds": 0}) + pack_close(number) for number, body in enumerate(sequence, 1)
    )
    with dialled(target) as stream:
        stream.sendall(HELLO + wire)
        decoder, ended = Decoder(), set()
        while len(ended) < len(sequence):
            data = stream.recv(65536)
            assert data, "dropped"
            for frame in decoder.feed(data):
                if frame.kind in (Kind.CLOSE, Kind.ERROR):
                    assert frame.channel not in ended
                    ended.add(frame.channel)
                elif frame.kind is not Kind.HELLO:
                    assert frame.channel not in ended


@quick
@given(st.binary(max_size=300))
def test_noise(target, noise):
    with dialled(target) as stream:
        talk(stream, noise)
    with dialled(target) as stream:
        talk(stream, HELLO + noise)
    assert_serves(target)


@quick
@given(st.lists(moves, min_size=1, max_size=6), st.data())
def test_a_session_with_a_byte_changed(target, sequence, data):
    wire = bytearray(HELLO + b"".join(sequence))
    wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    with dialled(target) as stream:
        talk(stream, bytes(wire))
    assert_serves(target)


def test_descriptors_that_nobody_announced_are_closed(target):
    def count():
        return len(os.listdir(f"/proc/{target.process.pid}/fd"))

    assert_serves(target)
    before = count()
    for _ in range(20):
        with dialled(target) as stream:
            reader, writer = os.pipe()
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [writer] * 12))
            with contextlib.suppress(ConnectionError):
                for _ in range(10):
                    stream.sendmsg([HELLO], [rights])
            os.close(writer)
            stream.close()
            assert os.read(reader, 1) == b""  # the last copy is gone
            os.close(reader)
    assert_serves(target)
    assert count() <= before + 1


def assert_dropped(stream, wire):
    """The agent hangs up on it, and not because we did."""
    with contextlib.suppress(ConnectionError):
        stream.sendall(HELLO + wire)
        while stream.recv(65536):
            pass


def test_data_beyond_the_window_is_a_breach(target):
    request = pack(Kind.OPEN, 1, {"op": "exec", "id": "window", "argv": ["sleep", "100"], "stdin": True})
    piece = data_header(1, 0, 1 << 18) + b"x" * (1 << 18)
    with dialled(target) as stream:
        assert_dropped(stream, request + piece * (2 * WINDOW >> 18))
    assert_serves(target)


def test_credit_without_end_is_a_breach(target):
    request = pack(Kind.OPEN, 1, {"op": "exec", "id": "credit", "argv": ["sleep", "100"]})
    with dialled(target) as stream:
        assert_dropped(stream, request + pack_credit(1, 1, MAX_WINDOW) * 2)
    assert_serves(target)


def memory(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def test_a_host_that_never_reads_costs_bounded_memory(target):
    with dialled(target) as stream:
        stream.sendall(HELLO)
        before = memory(target.process.pid)
        stream.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for number in range(1, 200_000):
                stream.sendall(pack(Kind.OPEN, number, {"op": "stat", "path": "file"}))
        assert_serves(target)
        assert memory(target.process.pid) - before < 64 << 20


def test_a_silly_order_costs_nobody_the_connection(target):
    wire = pack(Kind.OPEN, 1, {"op": "exec", "id": "silly", "argv": ["cat"], "pty": {"rows": 2, "columns": 2}})
    for order in ({"order": "resize", "rows": -1, "columns": 1 << 20}, {"order": "signal", "signal": 1 << 62}, {}):
        wire += pack(Kind.CONTROL, 1, order)
    wire += pack(Kind.OPEN, 2, {"op": "resize", "id": "silly", "rows": -1, "columns": 80})
    wire += pack(Kind.OPEN, 3, {"op": "ping"})
    with dialled(target) as stream:
        stream.sendall(HELLO + wire)
        decoder, answers = Decoder(), {}
        while 3 not in answers:
            data = stream.recv(65536)
            assert data, "dropped"
            answers |= {frame.channel: frame for frame in decoder.feed(data) if frame.kind is not Kind.CLOSE}
    assert answers[2].kind is Kind.ERROR
    assert answers[2].body["code"] == "invalid_argument"
