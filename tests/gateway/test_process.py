"""The gateway's process: found or started, alone, stripped of powers, gone when it has nothing to do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from paddock.errors import InvalidStateError, NotConfiguredError, NotFoundError
from paddock.gateway.authority import Authority
from paddock.gateway.client import GatewayClient
from paddock.gateway.control import VERSION, Hello, Open, Revise, Secret
from paddock.gateway.proxy.network import Limits, SandboxNetwork
from paddock.gateway.rules.secrets import BoundSecret, to_bytes
from paddock.gateway.server import Server
from paddock.linux import local_sockets
from paddock.model import ApprovalAnswer, ApprovalRequest, ApprovalState, PolicyDocument, codec
from paddock.policy.network import compile
from paddock.supervisor import layout
from paddock.wire import Kind, duplex, pack
from tests.conftest import gateway_pid
from tests.gateway.rig import eventually

NOTHING = Secret(sandbox="sb_none", name="x", secret=b"")


def deny(request: ApprovalRequest) -> ApprovalAnswer:
    return ApprovalAnswer(granted=False, state=ApprovalState.DENIED)


@pytest.fixture
def state(state_dir: Path) -> Path:
    (state_dir / layout.RUN).mkdir(parents=True, exist_ok=True)
    (state_dir / layout.AUDIT).mkdir(exist_ok=True)
    return state_dir


@asynccontextmanager
async def client(state: Path, lost: Callable[[], None] = lambda: None) -> AsyncGenerator[GatewayClient]:
    made = GatewayClient(state, on_lost=lost, approve=deny)
    try:
        yield made
    finally:
        made.close()


def run(scene: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(100):
            await scene

    asyncio.run(bounded())


@pytest.mark.both
def test_the_next_daemon_finds_the_one_of_the_daemon_before_and_takes_its_place(state: Path) -> None:
    async def scene() -> None:
        lost = asyncio.Event()
        async with client(state, lost.set) as one, client(state) as other:
            await asyncio.gather(one.order(NOTHING), one.order(NOTHING))  # the first starts it
            assert one.pid == gateway_pid(state)
            await other.order(NOTHING)
            assert other.pid == one.pid
            await lost.wait()

    run(scene())


def test_a_daemon_that_dies_while_it_starts_one_leaves_it_to_the_next(state: Path) -> None:
    async def scene() -> None:
        async with client(state) as one, client(state) as other:
            await asyncio.to_thread(one._start)  # and does not come to connecting
            await other.order(NOTHING)
            assert other.pid == gateway_pid(state)

    run(scene())


@pytest.mark.both
def test_it_has_no_powers_no_core_and_no_tracer(state: Path) -> None:
    async def scene() -> None:
        async with client(state) as one:
            await one.order(NOTHING)
            pid = one.pid
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
                await one.order(NOTHING)
                pid = one.pid
                if os.getuid() == 0:
                    links = {os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")}
                    assert str(state / "secret") not in links

    run(scene())


def test_when_it_is_killed_its_daemon_hears_of_it_and_the_next_order_starts_another(state: Path) -> None:
    async def scene() -> None:
        lost = asyncio.Event()
        async with client(state, lost.set) as one:
            await one.order(NOTHING)
            first = one.pid
            os.kill(first, signal.SIGKILL)
            await lost.wait()
            await one.order(NOTHING)
            assert one.pid != first

    run(scene())


def test_it_says_what_it_does_not_know(state: Path) -> None:
    async def scene() -> None:
        async with client(state) as one:
            with pytest.raises(NotFoundError, match="no network"):
                await one.order(Revise(sandbox="sb_x", instance_id=0, snapshot=b""))
            with pytest.raises(InvalidStateError, match="it has no network access any more"):
                await one.order(order("sb_x"))

    run(scene())


def test_one_that_cannot_start_says_why(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paddock.gateway.client.BOOTSTRAP", "raise SystemExit('out of luck')")

    async def scene() -> None:
        async with client(state) as one:
            with pytest.raises(NotConfiguredError, match="out of luck"):
                await one.connect()

    run(scene())


def test_one_of_another_version_is_named_with_the_line_to_type(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with client(state) as one, client(state) as other:
            await one.order(NOTHING)
            with monkeypatch.context() as patch:
                patch.setattr("paddock.gateway.client.VERSION", VERSION + 1)
                with pytest.raises(InvalidStateError, match="another version") as caught:
                    await other.order(NOTHING)
            assert f"kill {one.pid}" in str(caught.value)

    run(scene())


def test_one_from_before_there_were_frames_is_named_with_the_line_to_type(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the first frame for the length of a message that is too long, and ends the connection."""
    monkeypatch.setattr(duplex, "LEAVE_SECONDS", 0.05)
    before = (
        "import socket, sys\nlistener = socket.socket(socket.AF_UNIX)\nlistener.bind(sys.argv[1])\n"
        "listener.listen()\nprint(flush=True)\nwhile True: listener.accept()[0].close()"
    )

    async def scene() -> None:
        async with client(state) as one:
            with pytest.raises(NotConfiguredError, match="another version") as caught:
                await one.order(NOTHING)
            assert f"kill {old.pid}" in str(caught.value)

    socket_name = str(state / layout.GATEWAY_SOCKET)
    with subprocess.Popen([sys.executable, "-c", before, socket_name], stdout=subprocess.PIPE) as old:
        assert old.stdout is not None
        old.stdout.readline()
        run(scene())
        old.kill()


def test_its_first_frames_never_change() -> None:
    """By them a daemon of any version tells that this is a gateway of another."""
    assert (layout.GATEWAY_SOCKET, layout.GATEWAY_LOCK) == ("gateway.sock", "gateway.lock")
    said = json.loads(codec.encode(Hello(version=VERSION)))
    assert said == {"op": "hello", "version": VERSION}
    assert pack(Kind.HELLO, 0, b"{}") == bytes((2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)) + b"{}"


@pytest.mark.root
def test_another_user_is_not_heard(state: Path) -> None:
    async def scene() -> None:
        async with client(state) as one:
            await one.connect()
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    with socket.socket(socket.AF_UNIX) as network:
                        directory = os.open(state, os.O_RDONLY)
                        os.setresuid(65534, 65534, 65534)
                        network.settimeout(30)
                        network.connect(f"/proc/self/fd/{directory}/{layout.GATEWAY_SOCKET}")
                        code = 0 if network.recv(1) == b"" else 2
                except PermissionError:
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, pid, 0))[1]) == 0

    run(scene())


# -- the server, in this process


POLICY, SECRET = compile(PolicyDocument()).to_bytes(), to_bytes(BoundSecret(name="x", placeholder="p", bindings=()))
INSIDE = Authority.make("inside")


class NotedDoor:
    def __init__(self, sandbox: str, said: list[tuple[str, str]]) -> None:
        self._sandbox, self._said, self.secrets = sandbox, said, self
        self.instance_id = 0

    async def revise(self, policy: Any) -> None:
        self._said.append(("revise", self._sandbox))

    def put(self, bound: BoundSecret) -> None:
        self._said.append(("secret", self._sandbox))

    async def close(self) -> None:
        pass


class Noted:
    """A gateway that does nothing and says what it was told."""

    handlers = owners = malware = None

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.closed, self.working = asyncio.Event(), list[asyncio.Future[None]]()
        self.loop, self.limits = asyncio.get_running_loop(), Limits()
        self.networks: dict[str, Any] = {"sb_b": NotedDoor("sb_b", self.said)}

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        self.working.append(asyncio.ensure_future(work))

    async def open(self, network: SandboxNetwork) -> None:
        self.said.append(("open", network.sandbox))
        noted: Any = NotedDoor(network.sandbox, self.said)
        network.revise, network.secrets = noted.revise, noted
        self.networks[network.sandbox] = network

    async def close(self, sandbox: str) -> None:
        network = self.networks.pop(sandbox, None)
        if network is not None:
            self.said.append(("close", sandbox))
            self.closed.set()
            await network.close()

    async def close_all(self) -> None:
        for sandbox in list(self.networks):
            await self.close(sandbox)


def order(sandbox: str, instance_id: int = 0) -> Open:
    certificate, key = INSIDE.certificate, INSIDE.key
    return Open(
        sandbox=sandbox, instance_id=instance_id, first=(1, 0), snapshot=POLICY, certificate=certificate, key=key
    )


def some() -> tuple[int, ...]:
    """Sockets, and a process that lives."""
    return (*(socket.socket().detach() for _ in range(4)), os.pidfd_open(os.getpid()))


def served(state: Path, scene: Callable[[GatewayClient, Server, Noted], Coroutine[Any, Any, None]]) -> None:
    async def act() -> None:
        plane = Noted()
        listener = local_sockets.listen(state, layout.GATEWAY_SOCKET)
        server = Server(listener, plane, None, owner=os.getuid(), idle_seconds=0.1)  # pyright: ignore
        serving = asyncio.ensure_future(server.serve())
        async with client(state) as one:
            await one.connect(start=False)
            await scene(one, server, plane)
            await plane.close_all()
            await serving  # leaves when it has no network
        assert ("close", "sb_b") in plane.said

    run(act())


@pytest.mark.parametrize("body", [codec.encode(NOTHING), b'{"op":"revise"}', b"no JSON"])
def test_only_who_says_hello_takes_the_place_of_the_daemon(state: Path, body: bytes) -> None:
    async def scene(one: GatewayClient, server: Server, plane: Noted) -> None:
        before = one._connection
        nobody = local_sockets.connect(state, layout.GATEWAY_SOCKET)
        assert nobody is not None
        reader, writer = await asyncio.open_connection(sock=nobody)
        writer.write(pack(Kind.OPEN, 1, body))
        assert await reader.read() == b"", "an order of nobody's, or that is none, ends the connection"
        writer.close()
        await one.order(order("sb_a"), some())
        assert one._connection is before

    served(state, scene)


def test_a_door_that_is_opened_again_takes_the_place_of_the_one_before(state: Path) -> None:
    async def scene(one: GatewayClient, server: Server, plane: Noted) -> None:
        await one.order(order("sb_a"), some())
        await one.order(Revise(sandbox="sb_a", instance_id=0, snapshot=POLICY))
        await one.order(order("sb_a", 1), some())
        assert [what for what, _ in plane.said] == ["open", "revise", "close", "open"]

    served(state, scene)


def test_a_secret_that_changes_while_its_door_is_opened_is_told_when_it_is_open(state: Path) -> None:
    async def scene(one: GatewayClient, server: Server, plane: Noted) -> None:
        entered, go, opened = asyncio.Event(), asyncio.Event(), plane.open

        async def slow(network: SandboxNetwork) -> None:
            entered.set()
            await go.wait()
            await opened(network)

        plane.open = slow
        opening = asyncio.ensure_future(one.order(order("sb_a"), some()))
        await entered.wait()
        telling = asyncio.ensure_future(one.order(Secret(sandbox="sb_a", name="x", secret=SECRET)))
        go.set()
        await asyncio.gather(opening, telling)
        assert plane.said == [("open", "sb_a"), ("secret", "sb_a")]

    served(state, scene)


def test_the_door_of_a_sandbox_that_has_ended_is_closed_though_no_daemon_says_so(state: Path) -> None:
    async def scene(one: GatewayClient, server: Server, plane: Noted) -> None:
        *sockets, process = some()
        os.close(process)
        await one.order(order("sb_a"), (*sockets, os.pidfd_open(sandbox.pid)))
        sandbox.kill()
        await asyncio.wait_for(plane.closed.wait(), 60)
        assert plane.said[-1] == ("close", "sb_a")

    with subprocess.Popen(["sleep", "600"]) as sandbox:
        served(state, scene)


def test_a_claim_is_answered_by_the_daemon_and_without_one_it_is_a_no(state: Path) -> None:
    question = ApprovalRequest(sandbox="sb_a", instance_id=0, revision="r", kind="host", digest="d", summary="s")

    def knows(request: ApprovalRequest) -> ApprovalAnswer:
        return ApprovalAnswer(granted=True, id=f"ap_{request.digest}", state=ApprovalState.USED)

    async def scene(one: GatewayClient, server: Server, plane: Noted) -> None:
        one._approve = knows
        answer = await server.claim(question)
        assert (answer.granted, answer.id) == (True, "ap_d")
        one.close()
        await eventually(lambda: server._connection is None)
        assert not (await server.claim(question)).granted
        assert await one.connect(start=False)

    served(state, scene)


def test_a_gateway_that_fails_in_one_matter_fails_in_no_other(state: Path) -> None:
    async def scene(one: GatewayClient, server: Server, plane: Noted) -> None:
        def broken(bound: BoundSecret) -> None:
            raise ZeroDivisionError("of ours")

        plane.networks["sb_b"].put = broken
        with pytest.raises(Exception, match="ZeroDivisionError"):
            await one.order(Secret(sandbox="sb_b", name="x", secret=SECRET))
        await one.order(NOTHING)

    served(state, scene)
