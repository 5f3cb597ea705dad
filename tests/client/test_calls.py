"""Calls from threads, event loops and forked children, and calls whose callers leave before the answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paddock.client import AsyncSandbox, DaemonTransport, Sandbox, Session
from paddock.model import CreateSandbox, ListSandboxes, RunExec, State, codec
from paddock.wire import PROTOCOL, Connection, Frame, Kind
from tests.client.door import Rig
from tests.orphans import wait_until

RECVMSG = ("47", "212")
"""Its number on x86-64 and on arm64."""


def interrupt_when(ready: Callable[[], bool]) -> threading.Thread:
    """Ctrl-C for the main thread, once `ready` says so and it sleeps in recvmsg(2).

    A signal just before that doesn't wake it: Python's handler runs when the call returns, with the answer. Nor does
    one for the process that the kernel gives to another thread (signal(7)).
    """
    main = threading.get_ident()
    waits = Path(f"/proc/self/task/{threading.get_native_id()}/syscall")  # proc_pid_syscall(5)

    def watch() -> None:
        assert wait_until(lambda: ready() and waits.read_text().split()[0] in RECVMSG)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_control_c_ends_the_command_and_then_the_sandbox(rig: Rig) -> None:
    watcher = interrupt_when((rig.door.root / "started").exists)
    with pytest.raises(KeyboardInterrupt), Sandbox.create(transport=rig.transport) as sandbox:
        sandbox.exec(": > started; exec sleep 60")
    watcher.join()
    assert [type(action) for action in rig.door.cancelled] == [RunExec]
    assert rig.door.sandboxes[sandbox.id].state is State.KILLED


def test_a_sandbox_that_comes_too_late_is_killed(rig: Rig) -> None:
    rig.door.holds_create = True
    watcher = interrupt_when(lambda: bool(rig.door.sandboxes))
    with pytest.raises(KeyboardInterrupt):
        Sandbox.create(transport=rig.transport)
    watcher.join()
    assert wait_until(lambda: all(info.state is State.KILLED for info in rig.door.sandboxes.values()))


def test_forks_that_come_too_late_are_killed(rig: Rig) -> None:
    parent = Sandbox.create(transport=rig.transport)
    rig.door.holds_create = True
    watcher = interrupt_when(lambda: len(rig.door.sandboxes) > 1)
    with pytest.raises(KeyboardInterrupt):
        parent.fork(2)
    watcher.join()

    def children() -> list[State]:
        return [info.state for id, info in rig.door.sandboxes.items() if id != parent.id]

    assert wait_until(lambda: children() == [State.KILLED] * 2)


def test_an_interrupt_between_the_answer_and_its_return_gives_the_answer_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    Sandbox.list(transport=rig.transport)
    receive, interrupted = Connection.receive, list[bool]()

    def once(self: Connection) -> Frame | None:
        frame = receive(self)
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        return frame

    monkeypatch.setattr(Connection, "receive", once)
    with pytest.raises(KeyboardInterrupt):
        Sandbox.create(transport=rig.transport)
    assert wait_until(lambda: [info.state for info in rig.door.sandboxes.values()] == [State.KILLED])
    assert Sandbox.create(transport=rig.transport).exec("true").ok


def test_an_asynchronous_caller_that_leaves_gives_back_what_it_got(rig: Rig) -> None:
    async def scenario() -> None:
        sandbox = await AsyncSandbox.create(transport=rig.async_transport)
        for _ in range(50):  # somewhere between asked and answered
            task = asyncio.ensure_future(sandbox.start("sleep 60"))
            await asyncio.sleep(0.001)
            task.cancel()
            try:
                process = await task
            except asyncio.CancelledError:
                continue
            await process.aclose()

    asyncio.run(scenario())
    assert wait_until(lambda: not rig.door.open)


def test_threads_and_event_loops_use_one_sandbox_at_once(rig: Rig) -> None:
    sandbox = Sandbox.create(transport=rig.transport)
    codes: list[int] = []

    def one(number: int) -> None:
        codes.append(sandbox.exec(f"sleep 0.05; exit {number}").exit_code)

    async def another() -> list[int]:
        same = await AsyncSandbox.connect(sandbox.id, transport=rig.async_transport)
        return [result.exit_code for result in await asyncio.gather(*(same.exec(f"exit {n}") for n in range(8)))]

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        assert asyncio.run(another()) == list(range(8))
    for thread in threads:
        thread.join()
    assert sorted(codes) == list(range(8))


def test_a_forked_child_has_a_session_of_its_own_and_leaves_its_parent_s_alone(rig: Rig) -> None:
    sandbox = Sandbox.create(transport=rig.transport)
    token = rig.session.token
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 42 if sandbox.exec("true").ok and rig.session.token != token else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert sandbox.exec("true").ok
    assert rig.session.token == token


def test_a_client_that_dies_in_a_call_has_it_cancelled_and_undone(rig: Rig) -> None:
    rig.door.holds_create = True
    child = os.fork()
    if child == 0:
        try:
            Sandbox.create(transport=rig.transport)
        finally:
            os._exit(1)
    assert wait_until(lambda: any(isinstance(action, CreateSandbox) for action in rig.door.performed))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert wait_until(lambda: [info.state for info in rig.door.sandboxes.values()] == [State.KILLED])


def test_a_handle_that_outlives_its_daemon_closes_the_connection_that_it_finds_broken(rig: Rig) -> None:
    peer = rig.session.open_socket()
    rig.session.give_back(Connection(peer))
    peer.shutdown(socket.SHUT_RDWR)
    rig.session.give_up(b"{}")
    assert peer.fileno() == -1


def test_garbage_on_the_socket_ends_that_connection_and_no_other(rig: Rig) -> None:
    sandbox: Any = Sandbox.create(transport=rig.transport)
    for garbage in (b"\0" * 64, b"GET / HTTP/1.1\r\n\r\n", os.urandom(256)):
        with rig.connect() as peer:
            peer.sendall(garbage)
            assert wait_until(lambda peer=peer: _is_closed(peer))
    assert sandbox.exec("true").ok


def _is_closed(peer: Any) -> bool:
    try:
        return peer.recv(65536) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


class _Dying:
    """Stands for a daemon that dies: its first connections are greeted and end with the first request."""

    def __init__(self, ends: int) -> None:
        self._ends = ends
        self.requests = 0
        self.sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def connect(self, state_dir: Path) -> socket.socket:
        client, daemon = socket.socketpair()
        self.sockets.append(daemon)
        ends, self._ends = self._ends > 0, self._ends - 1
        self._threads.append(threading.Thread(target=self._serve, args=(Connection(daemon), ends)))
        self._threads[-1].start()
        return client

    def _serve(self, daemon: Connection, ends: bool) -> None:
        welcome = codec.Welcome(protocol=PROTOCOL, version="", instance="", pid=1, differs=(), notices=())
        assert daemon.receive() is not None
        daemon.send(Kind.HELLO, 0, codec.encode(welcome))
        while (frame := daemon.receive()) is not None:
            if ends:
                daemon.close()
                return
            self.requests += 1
            daemon.send(Kind.REPLY, frame.channel, b"[]")

    def close(self) -> None:
        for one in self.sockets:
            with contextlib.suppress(OSError):  # it has ended
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in self.sockets:
            one.close()


def test_what_may_be_asked_twice_survives_many_connections_to_a_daemon_that_dies(tmp_path: Path) -> None:
    daemon = _Dying(ends=3)
    session = Session(tmp_path, daemon.connect)
    with contextlib.closing(daemon), contextlib.closing(session):
        for connection in [session.take() for _ in range(3)]:
            session.give_back(connection)
        assert DaemonTransport(session).perform(ListSandboxes()) == ()
        assert daemon.requests == 1


def test_a_request_that_did_not_reach_the_daemon_is_sent_again(tmp_path: Path) -> None:
    daemon = _Dying(ends=0)
    session = Session(tmp_path, daemon.connect)
    with contextlib.closing(daemon), contextlib.closing(session):
        session.give_back(session.take())
        daemon.sockets[0].shutdown(socket.SHUT_RD)  # so that a send fails, and nothing is there to be received
        assert DaemonTransport(session).ask(b"{}", ()).body == b"[]"
        assert daemon.requests == 1
