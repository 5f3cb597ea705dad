"""What one client does to the daemon's socket costs the others nothing."""

from __future__ import annotations

import contextlib
import errno
import resource
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paddock import Sandbox
from paddock.client import default_transport
from paddock.daemon.main import _listener
from paddock.errors import ResourceExhaustedError
from paddock.linux import local_sockets
from paddock.model import Action, CreateSandbox, ListSandboxes, codec
from paddock.wire import PROTOCOL, Connection, Frame, Kind, pack
from tests.client.door import Rig
from tests.daemon.conftest import daemon_pid


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


def _greeted(rig: Rig) -> Connection:
    return Connection(rig.session.open_socket())


def _body(action: Action[Any]) -> bytes:
    return codec.encode(codec.Request(action=action))  # type: ignore[arg-type]


def _answer(client: Connection) -> Frame:
    frame = client.receive()
    assert frame is not None
    return frame


def test_five_hundred_clients_are_served_at_once(rig: Rig) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # both ends are of this process
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        clients = [stack.enter_context(contextlib.closing(_greeted(rig))) for _ in range(500)]
        for client in clients:
            client.send(Kind.OPEN, 1, _body(ListSandboxes()))
        assert {_answer(client).kind for client in clients} == {Kind.REPLY}


def test_a_client_that_does_not_greet_is_disconnected(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    body = codec.encode(codec.Hello(protocol=PROTOCOL, version="1", session="0" * 32))
    hello = pack(Kind.HELLO, 0, body)
    with contextlib.closing(_greeted(rig)) as greeted:
        monkeypatch.setattr(_listener, "_HELLO_SECONDS", 0.01)
        for part in (b"", hello[:7], hello[:-1]):
            with rig.connect() as peer:
                peer.setblocking(True)
                peer.sendall(part)
                assert peer.recv(1) == b""
        greeted.send(Kind.OPEN, 1, _body(ListSandboxes()))
        assert _answer(greeted).kind is Kind.REPLY, "a session may be silent as long as it likes"


def test_a_client_that_floods_is_refused_and_the_others_work(rig: Rig) -> None:
    rig.door.holds_create = True
    most = _listener._OPEN_REQUESTS  # pyright: ignore[reportPrivateUsage]
    with contextlib.closing(_greeted(rig)) as floods, contextlib.closing(_greeted(rig)) as works:
        for channel in range(1, most + 4):
            floods.send(Kind.OPEN, channel, _body(CreateSandbox()))
        refused = [_answer(floods) for _ in range(3)]
        assert [frame.channel for frame in refused] == [most + 1, most + 2, most + 3]
        assert all(b"resource_exhausted" in frame.body for frame in refused)
        works.send(Kind.OPEN, 1, _body(ListSandboxes()))
        assert _answer(works).kind is Kind.REPLY


def test_a_client_that_reads_no_answer_is_read_no_further(rig: Rig) -> None:
    for _ in range(50):
        Sandbox.create(transport=rig.transport)
    request, channel, unsent = _body(ListSandboxes()), 0, b""
    with rig.session.open_socket() as deaf:
        deaf.setblocking(False)
        while select.select((), (deaf,), (), 1.0)[1]:  # until the daemon takes no more
            if not unsent:
                channel += 1
                unsent = pack(Kind.OPEN, channel, request)
            with contextlib.suppress(BlockingIOError):
                unsent = unsent[deaf.send(unsent) :]
            assert channel < 100_000
        assert Sandbox.list(transport=rig.transport)


def test_the_log_names_who_broke_the_protocol_and_nobody_who_was_interrupted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tmp_path)
    with contextlib.closing(rig):
        with rig.session.open_socket() as interrupted:
            interrupted.sendall(pack(Kind.OPEN, 1, _body(ListSandboxes())))
            assert select.select((interrupted,), (), (), 10)[0]
        with contextlib.closing(_greeted(rig)) as breaks:
            breaks.send(Kind.REPLY, 1, b"")
            assert breaks.receive() is None
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == ["REPLY on channel 1"]


_MANY_UNDER_WAY = """
import array, asyncio, contextlib, resource, socket, sys
from pathlib import Path
from paddock.errors import PaddockError
from paddock.linux import caps
from paddock.model import ExecSpec, RunExec, StartExec, WriteFile
from tests.client.door import Rig

rig = Rig(Path(sys.argv[1]))
ask = rig.transport.perform
ask(RunExec(sandbox="s", spec=ExecSpec(argv=("true",))))
ask(WriteFile(sandbox="s", path="f")).abort()  # what is imported at its first use is there
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))


async def drop() -> None:
    caps.drop_all()


rig.served._on_loop(drop())  # capabilities are a thread's
caps.drop_all()
rights = array.array("i", [0] * 250)
with contextlib.ExitStack() as held:
    for _ in range(2):
        ours, theirs = map(held.enter_context, socket.socketpair())
        ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    for action in (StartExec(sandbox="s", spec=ExecSpec(argv=("sleep", "60"))), WriteFile(sandbox="s", path="f")):
        try:
            print(type(ask(action)))
        except PaddockError as error:
            print(error.code, error.details.get("errno"))
    for perform in (ask, lambda action: asyncio.run(rig.async_transport.perform(action))):
        try:
            print(perform(RunExec(sandbox="s", spec=ExecSpec(argv=("cat",)), input=bytes(1 << 20))))
        except PaddockError as error:
            print(error.code, error.details.get("errno"))
    print(ask(RunExec(sandbox="s", spec=ExecSpec(argv=("echo", "on")))).out.head)
ask(WriteFile(sandbox="s", path="f")).abort()
print(len(rig.door.open))
rig.close()
"""


def test_while_too_many_descriptors_of_this_user_are_under_way_a_stream_is_refused_and_its_command_ends(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _MANY_UNDER_WAY, tmp_path], capture_output=True, text=True, check=False
    )
    refused = f"{ResourceExhaustedError.code} ETOOMANYREFS"
    assert done.stdout.splitlines() == [refused, refused, refused, refused, "b'on\\n'", "0"], done.stderr


def test_while_no_client_can_be_accepted_the_loop_does_not_ask_again_and_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    def accept(_: socket.socket) -> None:
        nonlocal asked
        asked += 1
        raise OSError(errno.EMFILE, "Too many open files")

    with contextlib.closing(_greeted(rig)) as greeted:
        monkeypatch.setattr(_listener, "_BUSY_SECONDS", 3600.0)
        monkeypatch.setattr(socket.socket, "accept", accept)
        with rig.connect():
            for channel in range(1, 200):  # each is a turn of the loop at least
                greeted.send(Kind.OPEN, channel, _body(ListSandboxes()))
                assert _answer(greeted).kind is Kind.REPLY
    assert asked == 1


def test_a_daemon_without_descriptors_says_so_and_goes_on(state_dir: Path) -> None:
    transport = default_transport(state_dir)
    Sandbox.list(transport=transport)
    pid = daemon_pid(state_dir)
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    with contextlib.ExitStack() as queue:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 2, limits[1]))
        for _ in range(8):  # more than it can accept
            peer = local_sockets.connect(state_dir, _listener.SOCKET)
            assert peer is not None
            queue.enter_context(peer)
        with pytest.raises(ResourceExhaustedError, match="Too many open files"):
            Sandbox.create(level="jail", transport=transport)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    with Sandbox.create(level="jail", ttl_seconds=60, transport=transport) as box:
        assert box.exec("true").ok
    assert daemon_pid(state_dir) == pid
