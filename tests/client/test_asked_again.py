"""A connection that ends before the answer, while the daemon lives or with it: no verb happens twice.

| the connection ends | what changes something | what opens a stream | a command that was started |
|---|---|---|---|
| while it is under way | the first answer | the first answer | the first answer |
| when it was answered | the first answer | opened anew, the first is closed | `DaemonLostError` with its id |
| with the daemon | `DaemonLostError`, but for a create: its key | opened anew | `DaemonLostError` with its id |
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from select import select
from typing import Any

import pytest

from paddock.client import Sandbox, Session
from paddock.daemon.main import _recent_requests
from paddock.daemon.main._listener import Listener
from paddock.errors import DaemonLostError, DaemonUnavailableError
from paddock.model import (
    Action,
    CreateSandbox,
    ExecSpec,
    ForkSandbox,
    ListSandboxes,
    RunExec,
    StartExec,
    State,
    WriteFile,
)
from paddock.wire import Connection, Frame
from tests.client.door import Rig
from tests.orphans import wait_until

SAYS = ExecSpec(argv=("sh", "-c", "echo once >> log; echo said"))
VERBS: dict[str, Callable[[str], Action[Any]]] = {
    "create": lambda box: CreateSandbox(),
    "fork": lambda box: ForkSandbox(sandbox=box, count=2),
    "exec": lambda box: RunExec(sandbox=box, spec=SAYS),
    "start": lambda box: StartExec(sandbox=box, spec=SAYS),
    "write": lambda box: WriteFile(sandbox=box, path="f"),
}


def _performed(rig: Rig, action: Action[Any]) -> list[Any]:
    return [one for one in rig.door.performed if type(one) is type(action)]


def _begun(rig: Rig, action: Action[Any], before: int) -> Callable[[], bool]:
    def begun() -> bool:
        """It has done all but answer."""
        made = {CreateSandbox: 2, ForkSandbox: 3}.get(type(action), 1)
        log = rig.door.root / "log"
        return (
            len(_performed(rig, action)) > before
            and len(rig.door.sandboxes) >= made
            and (getattr(action, "spec", None) is not SAYS or (log.exists() and log.read_text() == "once\n"))
        )

    return begun


class Ending:
    """Ends the connections of a session, from outside."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch, self.sockets = monkeypatch, list[socket.socket]()
        init = Connection.__init__

        def note(connection: Connection, peer: socket.socket, **options: Any) -> None:
            self.sockets.append(peer)
            init(connection, peer, **options)

        monkeypatch.setattr(Connection, "__init__", note)

    def now(self) -> None:
        sockets, self.sockets = self.sockets, []  # the caller connects again at once
        for one in sockets:
            if one.fileno() >= 0:
                one.shutdown(socket.SHUT_RDWR)

    def with_the_next_answer(self, then: Callable[[], None] = lambda: None) -> None:
        """It has come, and nobody has read it."""
        receive, ended = Connection.receive, list[bool]()

        def end(connection: Connection) -> Frame | None:
            if ended:
                return receive(connection)
            ended.append(True)
            assert select((connection.detach(),), (), (), 30)[0]
            then()
            connection.close()
            raise ConnectionResetError("ended by the test")

        self._patch.setattr(Connection, "receive", end)


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Ending:
    return Ending(monkeypatch)


@pytest.fixture
def box(rig: Rig, ending: Ending) -> str:
    return Sandbox.create(transport=rig.transport).id


@pytest.fixture(params=["blocking", "event loop"])
def perform(request: pytest.FixtureRequest, rig: Rig) -> Callable[[Action[Any]], Any]:
    return _blocking(rig) if request.param == "blocking" else lambda action: asyncio.run(_on_a_loop(rig)(action))


def _blocking(rig: Rig) -> Callable[[Action[Any]], Any]:
    def perform(action: Action[Any]) -> Any:
        result = rig.transport.perform(action)
        if hasattr(result, "wait"):
            result.close()
        elif hasattr(result, "abort"):
            result.abort()
        return result

    return perform


def _on_a_loop(rig: Rig) -> Callable[[Action[Any]], Coroutine[Any, Any, Any]]:
    async def perform(action: Action[Any]) -> Any:
        result = await rig.async_transport.perform(action)
        if hasattr(result, "wait"):
            await result.aclose()
        elif hasattr(result, "abort"):
            await result.abort()
        return result

    return perform


@pytest.mark.parametrize("verb", VERBS)
def test_a_call_whose_connection_ends_has_the_first_answer(
    verb: str,
    rig: Rig,
    box: str,
    ending: Ending,
    perform: Callable[[Action[Any]], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered_to, again = _recent_requests.PendingRequest.answered_to, threading.Event()

    async def note(asked: _recent_requests.PendingRequest, reply: _recent_requests.Reply) -> bool:
        again.set()
        return await answered_to(asked, reply)

    monkeypatch.setattr(_recent_requests.PendingRequest, "answered_to", note)
    action = VERBS[verb](box)
    before, results = len(_performed(rig, action)), list[Any]()
    rig.door.holds_answers = True
    caller = threading.Thread(target=lambda: results.append(perform(action)))
    caller.start()
    assert wait_until(_begun(rig, action, before))
    ending.now()
    assert again.wait(20)
    rig.door.holds_answers = False
    caller.join()
    assert len(_performed(rig, action)) == before + 1
    (result,) = results
    match verb:
        case "create":
            assert result.id in rig.door.sandboxes
        case "fork":
            assert {child.id for child in result} < set(rig.door.sandboxes)
        case "exec":
            assert result.out.head == b"said\n"
        case _:
            pass


@pytest.mark.parametrize("daemon", ["lives", "has died"])
@pytest.mark.parametrize("verb", VERBS)
def test_an_answer_that_nobody_has_read_is_given_again_or_unknown(
    verb: str, daemon: str, rig: Rig, box: str, ending: Ending
) -> None:
    action = VERBS[verb](box)
    before = len(_performed(rig, action))
    ending.with_the_next_answer(rig.served.forget if daemon == "has died" else lambda: None)
    try:
        result, error = rig.transport.perform(action), None
    except DaemonLostError as lost:
        result, error = None, lost
    performed = _performed(rig, action)[before:]
    if verb == "write":
        assert len(performed) == 2
        result.abort()
    elif verb == "create":
        assert result.id in rig.door.sandboxes
        assert len({one.idempotency_key for one in performed}) == 1
        assert len(performed) == (1 if daemon == "lives" else 2)
    else:
        assert len(performed) == 1
        assert (error is None) == (daemon == "lives" and verb != "start")
    if error is not None and verb in ("exec", "start"):
        assert error.id == performed[0].id
        assert box in str(error)
    if daemon == "lives":
        assert wait_until(lambda: not rig.door.open), "what its caller never got is closed"


@pytest.mark.parametrize("kind", ["blocking", "event loop"])
@pytest.mark.parametrize("verb", VERBS)
def test_what_a_daemon_that_leaves_has_not_read_is_done_once_by_the_next(
    verb: str, kind: str, rig: Rig, box: str
) -> None:
    action = VERBS[verb](box)
    before, results = len(_performed(rig, action)), list[Any]()
    connected, asks = threading.Event(), threading.Event()

    def blocking() -> None:
        _blocking(rig)(ListSandboxes())
        connected.set()
        assert asks.wait(30)
        results.append(_blocking(rig)(action))

    async def on_a_loop() -> None:
        await _on_a_loop(rig)(ListSandboxes())
        connected.set()
        assert asks.wait(30)
        results.append(await _on_a_loop(rig)(action))

    def until_it_asks(listener: Listener) -> None:
        peers = [one._peer for one in listener._connections]  # pyright: ignore[reportPrivateUsage]
        asks.set()
        assert select(peers, (), (), 30)[0]

    caller = threading.Thread(target=blocking if kind == "blocking" else lambda: asyncio.run(on_a_loop()))
    caller.start()
    assert connected.wait(30)
    rig.served.hand_over(until_it_asks)
    caller.join()
    assert len(results) == 1
    assert len(_performed(rig, action)) == before + 1


@pytest.mark.parametrize("verb", ["create", "fork"])
def test_sandboxes_that_are_made_while_the_daemon_leaves_live(
    verb: str, rig: Rig, box: str, perform: Callable[[Action[Any]], Any]
) -> None:
    results = list[Any]()
    rig.door.holds_create = True
    caller = threading.Thread(target=lambda: results.append(perform(VERBS[verb](box))))
    caller.start()
    assert wait_until(lambda: len(rig.door.sandboxes) == 2)
    rig.served.hand_over(lambda _: None)
    caller.join()
    made = results[0] if verb == "fork" else results
    assert {box, *(one.id for one in made)} == set(rig.door.sandboxes)
    assert {one.state for one in rig.door.sandboxes.values()} == {State.RUNNING}


def test_what_runs_on_in_the_background_is_named(rig: Rig, box: str, ending: Ending) -> None:
    ending.with_the_next_answer(rig.served.forget)
    with pytest.raises(DaemonLostError, match=r"sandbox\.attach\('ex_") as caught:
        rig.transport.perform(StartExec(sandbox=box, spec=SAYS, background=True))
    (started,) = _performed(rig, StartExec(sandbox=box, spec=SAYS))
    assert caught.value.id == started.id
    assert f"paddock logs -f {box} {started.id}" in str(caught.value)


def test_what_nobody_asks_for_again_is_cancelled(
    rig: Rig, box: str, ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_recent_requests, "RETURN_SECONDS", 0.05)
    other = rig.session.take()  # by which the session lives on
    rig.session.give_back(rig.session.open())
    rig.door.holds_answers = True
    monkeypatch.setattr(Session, "open", _refuse)
    lost = list[bool]()

    def call() -> None:
        with pytest.raises(DaemonLostError):
            rig.transport.perform(VERBS["exec"](box))
        lost.append(True)

    caller = threading.Thread(target=call)
    caller.start()
    assert wait_until(_begun(rig, VERBS["exec"](box), 0))
    ending.now()
    caller.join()
    assert lost
    assert wait_until(lambda: len(rig.door.cancelled) == 1)
    rig.door.holds_answers = False
    other.close()


def _refuse(session: Session) -> Connection:
    raise DaemonUnavailableError("refused by the test")


def test_answers_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> list[bool]:
        memory = _recent_requests.RecentRequests()
        for number in range(3000):
            asked = memory.begin(("s", str(number)), asyncio.ensure_future(asyncio.sleep(0)), lambda *_: None)
            asked(_recent_requests.Kind.REPLY, bytes(1 << 20 if number == 2990 else 10))
            memory.finish(("s", str(number)), asked)
        few = [memory.find(("s", str(number))) is not None for number in (0, 1975, 1976, 2999)]
        asked = memory.begin(("s", "much"), asyncio.ensure_future(asyncio.sleep(0)), lambda *_: None)
        asked(_recent_requests.Kind.REPLY, bytes(9 << 20))
        memory.finish(("s", "much"), asked)
        return [*few, memory.find(("s", "2999")) is not None, memory.find(("s", "much")) is not None]

    assert asyncio.run(scenario()) == [False, False, True, True, False, False]
