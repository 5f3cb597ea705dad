"""The n-th system call fails, for every n: nothing crashes, nothing hangs, nothing is left."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paddock.wire.guest import Accept, AttachFlags, EndedFlags, ExecFlags, Exit, Kill, Kind, Op, Stream
from tests.native.driver import Connection, Ended, GuestError, build_module, frame, start
from tests.native.test_commands import attach, background
from tests.native.test_echo import echo
from tests.native.test_relays import connect

STEP = 7
"""Every seventh call of a conversation with some hundreds of them; `make test-all` takes every one."""
PATIENCE_SECONDS = 30
ALLOCATION = 0
"""In place of an errno: the n-th allocation fails, not the n-th system call."""


def converse(host: Connection) -> None:
    """What a host asks in its life. Any of it may be refused."""
    for ask in (
        lambda: host.run("cat", stdin=b"some bytes"),
        lambda: host.sh("echo out; echo err >&2; exit 3"),
        lambda: host.run("true", flags=ExecFlags.TERMINAL, rows=5, columns=5),
        lambda: echo(host, b"some bytes"),
        lambda: follow(host),
        lambda: let_go(host),
        lambda: over_a_port(host),
        lambda: over_a_door(host),
    ):
        try:
            ask()
        except GuestError:
            pass


def follow(host: Connection) -> None:
    id = background(host, "sh", "-c", "echo early; exit 6")
    attach(host, id, flags=AttachFlags.OUT).finish()
    host.call(Op.KILL, Kill(id=id).pack())


def let_go(host: Connection) -> None:
    command = host.exec("sleep", "600")
    host.send(frame(Kind.CLOSE, channel=command.channel))
    if command.next(Kind.CLOSE, Kind.ERROR).kind == Kind.ERROR:
        os.kill(command.pid, signal.SIGKILL)  # no helper could be made, it said so


def over_a_port(host: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        channel = connect(host, server.getsockname()[1])
        server.settimeout(PATIENCE_SECONDS)
        with server.accept()[0] as peer:
            converse_over(host, channel, peer)


def converse_over(host: Connection, channel: int, peer: socket.socket) -> None:
    """Both directions, or an error that says that one has failed."""
    peer.settimeout(PATIENCE_SECONDS)
    host.data(channel, b"to it")
    host.send(frame(Kind.EOF, Stream.IN, channel))
    with contextlib.suppress(ConnectionError):  # the guest has hung up, and says why
        while peer.recv(100):
            pass
        peer.sendall(b"from it")
    peer.close()
    while host.for_channel(channel).kind not in (Kind.CLOSE, Kind.ERROR):
        pass


def over_a_door(host: Connection) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/door"
        channel = host.open(Op.ACCEPT, Accept(path=path.encode()).pack())
        host.ping()
        with socket.socket(socket.AF_UNIX) as peer, contextlib.suppress(FileNotFoundError, ConnectionError):
            peer.connect(path)  # unless there is none, and the answer says why
            host.reply(channel)
            converse_over(host, channel, peer)


def struck(program: Path, n: int, error: int, conversation: Callable[[Connection], None] = converse) -> bool:
    """Whether there was an n-th call; False once the whole conversation went well."""
    ours, its = socket.socketpair()
    pid = start(program, [its.fileno()], argv=(f"guest {n} {error}",))
    its.close()
    failed = False
    try:
        host = Connection(ours)
        host.peer.settimeout(PATIENCE_SECONDS)
        conversation(host)
    except (Ended, BrokenPipeError, ConnectionResetError):
        failed = True
    ours.close()
    end = time.monotonic() + PATIENCE_SECONDS
    while (found := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < end:
        time.sleep(0.001)
    if found[0] == 0:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise AssertionError(f"with call {n} failing the guest does not end")
    code = os.waitstatus_to_exitcode(found[1])
    assert code in (0, 125), f"with call {n} failing the guest ended with {code}"
    assert failed or code == 0
    return failed


@pytest.fixture(scope="session")
def faulty() -> Path:
    return build_module().build(sanitize=True, faults=True)


@pytest.mark.parametrize("error", [errno.ENOMEM, errno.EMFILE, errno.EIO], ids=lambda number: errno.errorcode[number])
def test_any_system_call_may_fail(faulty: Path, error: int) -> None:
    for n in range(1 + error % STEP, 450, STEP):
        struck(faulty, n, error)


def says_what_is_lost(host: Connection) -> None:
    """A command whose output was read while it ran, and its end."""
    out, end = b"", None
    with contextlib.suppress(GuestError):
        command = host.exec("sh", "-c", "echo out; read line; exit 0", flags=ExecFlags.STDIN)
        got = command.next(Kind.DATA, Kind.EOF, Kind.EXIT)
        host.send(frame(Kind.EOF, Stream.IN, command.channel))
        while got.kind not in (Kind.CLOSE, Kind.ERROR):
            out += got.body if got.kind == Kind.DATA else b""
            end = Exit.unpack(got.body) if got.kind == Kind.EXIT else end
            got = host.for_channel(command.channel)
    assert out or end is None or end.code or end.ended & EndedFlags.OUT_OPEN, end


def test_output_that_the_agent_cannot_read_is_not_lost_silently(faulty: Path) -> None:
    for n in range(1, 80):
        struck(faulty, n, errno.EIO, says_what_is_lost)


def test_any_allocation_may_fail(faulty: Path) -> None:
    """Of memory for a request. That of the kernel is asked for by system calls."""
    refused = [n for n in range(1, 40, 3) if struck(faulty, n, ALLOCATION)]
    assert not refused, "the request fails, never the agent"


@pytest.mark.slow
@pytest.mark.parametrize("error", [errno.ENOMEM, errno.EAGAIN], ids=lambda number: errno.errorcode[number])
def test_every_system_call_may_fail(faulty: Path, error: int) -> None:
    for n in range(1, 450):
        struck(faulty, n, error)


@pytest.mark.slow
def test_every_allocation_may_fail(faulty: Path) -> None:
    refused = [n for n in range(1, 40) if struck(faulty, n, ALLOCATION)]
    assert not refused, "the request fails, never the agent"
