"""The gateway's process: found or started, alone, stripped of powers, gone when it has nothing to do."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from paddock.egress._client import GatewayClient
from paddock.egress._control import VERSION, Answer, Claim, Claimed, Close, Hello, Message, Open, Revise, Secret
from paddock.egress._process import BOOTSTRAP
from paddock.egress._server import Server
from paddock.errors import InvalidState, NotConfigured, NotFound
from paddock.keeper import layout
from tests.conftest import gateway_pid

HELLO = Hello(n=0, version=VERSION)


def deny(claim: Claim) -> Claimed:
    return Claimed(n=0, state="denied")


@pytest.fixture
def state(state_dir: Path) -> Path:
    (state_dir / layout.RUN).mkdir(parents=True, exist_ok=True)
    (state_dir / layout.AUDIT).mkdir(exist_ok=True)
    return state_dir


@asynccontextmanager
async def client(state: Path, lost: Callable[[], None] = lambda: None) -> AsyncGenerator[GatewayClient]:
    made = GatewayClient(state, on_lost=lost, judge=deny)
    try:
        yield made
    finally:
        await made.aclose()


def run(scene: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(100):
            await scene

    asyncio.run(bounded())


def test_many_that_want_one_find_the_same(state: Path) -> None:
    async def scene() -> None:
        async with client(state) as one, client(state) as other:
            first, second = await asyncio.gather(one.order(HELLO), other.order(HELLO))
            assert first.pid == second.pid == gateway_pid(state)

    run(scene())


def test_it_has_no_powers_no_core_and_no_tracer(state: Path) -> None:
    async def scene() -> None:
        async with client(state) as one:
            pid = (await one.order(HELLO)).pid
            text = Path(f"/proc/{pid}/status").read_text().splitlines()  # noqa: ASYNC240
            status = dict(line.split(":\t", 1) for line in text if ":\t" in line)
            assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
            assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
            limits = Path(f"/proc/{pid}/limits").read_text().splitlines()  # noqa: ASYNC240
            assert next(line for line in limits if line.startswith("Max core")).split()[4:6] == ["0", "0"]
            if os.getuid() != 0:
                with pytest.raises(PermissionError):
                    os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))

    run(scene())


def test_it_keeps_nothing_of_its_starter_open(state: Path) -> None:
    async def scene() -> None:
        with (state / "secret").open("wb") as held:
            os.set_inheritable(held.fileno(), True)
            async with client(state) as one:
                pid = (await one.order(HELLO)).pid
                if os.getuid() == 0:
                    links = {os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")}
                    assert str(state / "secret") not in links

    run(scene())


def test_when_it_is_killed_its_services_hear_of_it_and_the_next_order_starts_another(state: Path) -> None:
    async def scene() -> None:
        lost = asyncio.Event()
        async with client(state, lost.set) as one:
            first = (await one.order(HELLO)).pid
            os.kill(first, signal.SIGKILL)
            await lost.wait()
            assert (await one.order(HELLO)).pid != first

    run(scene())


def test_it_says_what_it_does_not_know(state: Path) -> None:
    async def scene() -> None:
        async with client(state) as one:
            with pytest.raises(NotFound, match="no door"):
                await one.order(Revise(n=0, sandbox="sb_x", incarnation=0, snapshot=b""))
            with pytest.raises(InvalidState, match="speaks version"):
                await one.order(Hello(n=0, version=VERSION + 1))
            with pytest.raises(InvalidState, match="nobody has the sockets"):
                await one.order(order("sb_x"))
            await one.order(Close(n=0, sandbox="sb_x", incarnation=0))

    run(scene())


def test_one_that_cannot_start_says_why(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paddock.egress._process.BOOTSTRAP", "raise SystemExit('out of luck')")

    async def scene() -> None:
        async with client(state) as one:
            with pytest.raises(NotConfigured, match="out of luck"):
                await one.connect()

    run(scene())


def test_the_words_of_one_that_is_there_already_are_no_failure_of_the_next(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have one log: where two are started at once, what the first says is read by who has started the second."""
    monkeypatch.setattr(
        "paddock.egress._process.BOOTSTRAP", f"import sys; print('no Landlock', file=sys.stderr); {BOOTSTRAP}"
    )
    with (state / layout.GATEWAY_LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        async def scene() -> None:
            async with client(state) as one:
                one._start()
                assert not await one.connect(start=False)

        run(scene())


@pytest.mark.root
def test_another_user_is_not_heard(state: Path) -> None:
    async def scene() -> None:
        async with client(state) as one:
            await one.connect()
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    with socket.socket(socket.AF_UNIX) as door:
                        directory = os.open(state, os.O_RDONLY)
                        os.setresuid(65534, 65534, 65534)
                        door.settimeout(30)
                        door.connect(f"/proc/self/fd/{directory}/{layout.GATEWAY_SOCKET}")
                        code = 0 if door.recv(1) == b"" else 2
                except PermissionError:
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, pid, 0))[1]) == 0

    run(scene())


# -- the server, in this process


class Noted:
    """A plane that does nothing and says what it was told."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.sockets: list[socket.socket] = []
        self.closed = asyncio.Event()

    async def open(self, order: Open, sockets: Any) -> None:
        self.said.append(("open", order.sandbox))
        self.sockets += sockets

    async def revise(self, order: Open | Revise) -> None:
        self.said.append(("revise", order.sandbox))

    async def secret(self, order: Secret) -> None:
        self.said.append(("secret", order.sandbox))

    async def close(self, sandbox: str) -> None:
        self.said.append(("close", sandbox))
        self.closed.set()
        for one in self.sockets:
            one.close()


def order(sandbox: str, incarnation: int = 0, sockets: int = 0) -> Open:
    return Open(n=0, sandbox=sandbox, incarnation=incarnation, snapshot=b"", certificate=b"", key=b"", sockets=sockets)


def some() -> list[socket.socket]:
    return [socket.socket() for _ in range(4)]


def served(state: Path, scene: Callable[[GatewayClient, Server, Noted, set[str]], Coroutine[Any, Any, None]]) -> None:
    async def act() -> None:
        living = {"sb_a", "sb_b"}
        plane = Noted()
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(state / layout.GATEWAY_SOCKET))
        listener.listen()
        server = Server(listener, owner=os.getuid(), lives=lambda id, number: id in living, idle_seconds=0.1)
        server._doors["sb_b"] = 0  # keeps it from leaving, however long it takes to get there
        serving = asyncio.ensure_future(server.serve(plane))
        try:
            async with client(state) as one:
                await one.connect(start=False)
                await scene(one, server, plane, living)
                living.clear()
                await serving  # leaves when it has no door
                assert ("close", "sb_b") in plane.said
        finally:
            listener.close()

    run(act())


def test_the_same_door_again_is_a_revision_and_one_of_a_later_incarnation_takes_its_place(state: Path) -> None:
    async def scene(one: GatewayClient, server: Server, plane: Noted, living: set[str]) -> None:
        await one.order(order("sb_a", sockets=4), some())
        await one.order(order("sb_a", sockets=4), some())
        await one.order(order("sb_a"))
        await one.order(order("sb_a", 1, sockets=4), some())
        await one.order(Close(n=0, sandbox="sb_a", incarnation=0))  # late news of the one before
        assert [what for what, _ in plane.said] == ["open", "revise", "revise", "close", "open"]

    served(state, scene)


def test_a_secret_that_changes_while_its_door_is_opened_is_told_when_it_is_open(state: Path) -> None:
    async def scene(one: GatewayClient, server: Server, plane: Noted, living: set[str]) -> None:
        entered, go, opened = asyncio.Event(), asyncio.Event(), plane.open

        async def slow(order: Open, sockets: Any) -> None:
            entered.set()
            await go.wait()
            await opened(order, sockets)

        plane.open = slow
        opening = asyncio.ensure_future(one.order(order("sb_a", sockets=4), some()))
        await entered.wait()
        telling = asyncio.ensure_future(one.order(Secret(n=0, sandbox="sb_a", name="x", secret=b"")))
        await one.order(HELLO)  # what was ordered before has come as far as it can
        go.set()
        await asyncio.gather(opening, telling)
        assert plane.said == [("open", "sb_a"), ("secret", "sb_a")]

    served(state, scene)


def test_orders_for_one_sandbox_take_turns_though_its_door_was_closed_between_them(state: Path) -> None:
    async def scene(one: GatewayClient, server: Server, plane: Noted, living: set[str]) -> None:
        entered, go, opened, closed = asyncio.Event(), asyncio.Event(), plane.open, plane.close
        inside: list[int] = []

        async def open_slowly(order: Open, sockets: Any) -> None:
            inside.append(order.incarnation)
            entered.set()
            await go.wait()
            await opened(order, sockets)

        async def close_slowly(sandbox: str) -> None:
            entered.set()
            await go.wait()
            await closed(sandbox)

        await one.order(order("sb_a", sockets=4), some())
        plane.open, plane.close = open_slowly, close_slowly
        closing = asyncio.ensure_future(one.order(Close(n=0, sandbox="sb_a", incarnation=0)))
        await entered.wait()
        opening = [asyncio.ensure_future(one.order(order("sb_a", 1, sockets=4), some()))]
        await one.order(HELLO)  # what was ordered before has come as far as it can
        entered.clear()
        go.set()
        go.clear()  # who waited goes on, and who comes waits
        await closing
        await entered.wait()
        opening.append(asyncio.ensure_future(one.order(order("sb_a", 1, sockets=4), some())))
        await one.order(HELLO)
        assert inside == [1]
        plane.close = closed
        go.set()
        await asyncio.gather(*opening)
        assert [what for what, _ in plane.said] == ["open", "close", "open", "revise"]
        assert server._turns == {}

    served(state, scene)


def test_the_door_of_a_sandbox_that_has_ended_is_closed_though_no_service_says_so(state: Path) -> None:
    async def scene(one: GatewayClient, server: Server, plane: Noted, living: set[str]) -> None:
        await one.order(order("sb_a", sockets=4), some())
        living.discard("sb_a")
        await asyncio.wait_for(plane.closed.wait(), 60)
        assert ("close", "sb_a") in plane.said

    served(state, scene)


def test_a_claim_is_answered_by_the_service_that_knows_and_without_one_it_is_a_no(state: Path) -> None:
    question = Claim(n=0, sandbox="sb_a", incarnation=0, revision="r", kind="host", digest="d", summary="s")

    async def scene(one: GatewayClient, server: Server, plane: Noted, living: set[str]) -> None:
        def knows(claim: Claim) -> Claimed:
            return Claimed(n=0, state="granted", approval=f"ap_{claim.digest}")

        def knows_not(claim: Claim) -> Claimed:
            return Claimed(n=0, state="unknown")

        other = GatewayClient(state, on_lost=lambda: None, judge=knows)
        third = GatewayClient(state, on_lost=lambda: None, judge=knows_not)
        await other.connect(start=False)
        await third.connect(start=False)
        one._judge = knows_not
        answer = await server.claim(question)
        assert (answer.state, answer.approval) == ("granted", "ap_d")
        await other.aclose()
        assert (await server.claim(question)).state == "denied"
        await third.aclose()

    served(state, scene)


def test_a_plane_that_fails_in_one_matter_fails_in_no_other(state: Path) -> None:
    async def scene(one: GatewayClient, server: Server, plane: Noted, living: set[str]) -> None:
        async def broken(order: Message) -> None:
            raise ZeroDivisionError("of ours")

        plane.secret = broken
        with pytest.raises(Exception, match="ZeroDivisionError"):
            await one.order(Secret(n=0, sandbox="sb_b", name="x", secret=b""))
        assert isinstance(await one.order(HELLO), Answer)

    served(state, scene)
