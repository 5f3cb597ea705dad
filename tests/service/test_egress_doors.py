"""Between a service and the gateway's process: doors are opened, and opened again whoever dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from paddock.audit import AuditLog
from paddock.backends import Instance
from paddock.egress._client import GatewayClient
from paddock.egress._control import Claimed, Close, Open, Revise, Secret
from paddock.egress._secret_book import Bound, to_bytes
from paddock.egress._server import listen
from paddock.errors import NotConfigured, NotFound
from paddock.keeper import layout
from paddock.model import Binding, Level, PolicyDocument, Sandbox, SandboxSpec, SecretValue, State
from paddock.policy.egress import compile
from paddock.service._doors import Doors
from paddock.service._store import Row
from paddock.service._tasks import Tasks
from tests.conftest import gateway_pid
from tests.egress.rig import eventually
from tests.keeper.conftest import Yard, open_yard
from tests.keeper.conftest import run as execute

# The gateway would wait two seconds for the first words of a silent caller, to refuse it in its own protocol.
_CALL = """
import socket
try:
    with socket.create_connection(("192.0.2.7", 443), 60) as s: s.sendall(bytes(30)); print(len(s.recv(1)))
except ConnectionError as error: print(type(error).__name__)
"""
REFUSED = (b"ConnectionResetError\n", b"ConnectionRefusedError\n", b"0\n")


NOTHING = compile(PolicyDocument())


@asynccontextmanager
async def doors_of(yard: Yard, secrets: Callable[[Row], Awaitable[bytes]] | None = None) -> AsyncGenerator[Doors]:
    audit = AuditLog(yard.state_dir / layout.AUDIT)
    failures: list[BaseException] = []
    tasks = Tasks(lambda name, error: failures.append(error))

    doors = Doors(
        yard.state_dir,
        exits=lambda row: yard.backend.exits(row.id, row.incarnation),
        tasks=tasks,
        audit=audit,
        judge=lambda claim: Claimed(n=0, state="unknown"),
        secrets=secrets,
    )
    try:
        yield doors
    finally:
        await doors.aclose()
        await tasks.aclose()
        audit.close()
    assert not failures


def row_of(instance: Instance, state: State = State.RUNNING) -> Row:
    sandbox = Sandbox(
        id=instance.id,
        spec=SandboxSpec(),
        state=state,
        level=Level.JAIL,
        backend="jail",
        template="host",
        created_at=0,
        expires_at=0,
    )
    return Row(sandbox, 0.0, "")


def play(state_dir: Path, scene: Callable[[Yard], Any]) -> None:
    async def act() -> None:
        async with asyncio.timeout(110), open_yard(state_dir) as yard:
            await scene(yard)

    asyncio.run(act())


async def calls(instance: Instance) -> bytes:
    return (await execute(instance, "python3", "-c", _CALL))[1]


async def trusted(instance: Instance) -> bytes:
    return (await execute(instance, "sh", "-c", 'head -n12 "$SSL_CERT_FILE"'))[1]


def test_who_is_open_is_served_and_its_programs_have_the_authority(module_state: Path) -> None:
    async def scene(yard: Yard) -> None:
        async with doors_of(yard) as doors:
            instance = await yard.create(exits=True)
            await doors.open(row_of(instance), NOTHING)
            assert await calls(instance) in REFUSED  # what is at the other end takes nobody in, and says so at once
            assert (await trusted(instance)).startswith(b"-----BEGIN CERTIFICATE-----\n")
            await doors.close(row_of(instance))
            await instance.kill()

    play(module_state, scene)


def test_a_gateway_that_is_killed_is_replaced_and_whoever_called_meanwhile_is_served(state_dir: Path) -> None:
    async def scene(yard: Yard) -> None:
        async with doors_of(yard) as doors:
            one, other = await yard.create(exits=True), await yard.create(exits=True)
            for instance in (one, other):
                await doors.open(row_of(instance), NOTHING)
            before = [await trusted(one), await trusted(other)]
            assert before[0] != before[1]
            first = gateway_pid(yard.state_dir)
            assert first is not None
            os.kill(first, signal.SIGKILL)
            for instance in (one, other):
                assert await calls(instance) in REFUSED
            assert gateway_pid(yard.state_dir) not in (None, first)
            assert [await trusted(one), await trusted(other)] == before, "programs inside trust whom they trusted"
            for instance in (one, other):
                await instance.kill()

    play(state_dir, scene)


def test_a_secret_that_is_rotated_before_the_gateway_has_the_door_reaches_it(
    module_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [b"first", b"second", b"third"]  # another is set each time that one looks, and then no more
    ordered: list[bytes | None] = []
    order = GatewayClient.order

    def bound(value: bytes) -> Bound:
        binding = Binding(host="api.test", header="Authorization")
        return Bound(name="TOKEN", placeholder="pdk_1", bindings=(binding,), value=SecretValue(value))

    async def packed(_: Row) -> bytes:
        return to_bytes((bound(kept.pop(0) if len(kept) > 1 else kept[0]),))

    async def noted(client: GatewayClient, message: Any, sockets: Any = ()) -> Any:
        answer = await order(client, message, sockets)
        if isinstance(message, Open):
            ordered.append(message.secrets)
        if isinstance(message, Secret):
            ordered.append(message.secret)
        return answer

    async def scene(yard: Yard) -> None:
        async with doors_of(yard, packed) as doors:
            instance = await yard.create(exits=True)
            await doors.open(row_of(instance), NOTHING)
            assert ordered == [to_bytes((bound(b"first"),)), to_bytes(bound(b"second")), to_bytes(bound(b"third"))]
            await instance.kill()

    monkeypatch.setattr(GatewayClient, "order", noted)
    play(module_state, scene)


def test_nothing_is_ordered_of_a_gateway_that_has_not_yet_answered(state_dir: Path) -> None:
    """One that is being killed is still connected to: an order on that connection would be lost with it."""

    async def scene(yard: Yard) -> None:
        async with doors_of(yard) as doors:
            client = doors._client  # pyright: ignore[reportPrivateUsage]
            dying = listen(yard.state_dir, layout.GATEWAY_SOCKET)
            first = asyncio.ensure_future(client.connect())
            await eventually(lambda: client._waiting)  # pyright: ignore[reportPrivateUsage]
            order = asyncio.ensure_future(client.order(Close(n=0, sandbox="sb_none", incarnation=0)))
            for _ in range(10):
                await asyncio.sleep(0)
            dying.close()
            assert await first
            await order

    play(state_dir, scene)


@pytest.mark.parametrize("state", [State.CREATING, State.RUNNING])
def test_a_door_is_opened_though_the_gateway_goes_before_it_hears_of_it(state_dir: Path, state: State) -> None:
    """As one does that has had no door for a while, just when there is to be one."""

    async def scene(yard: Yard) -> None:
        async with doors_of(yard) as doors:
            one, other = await yard.create(exits=True), await yard.create(exits=True)
            await doors.open(row_of(one), NOTHING)
            first = gateway_pid(yard.state_dir)
            assert first is not None
            os.kill(first, signal.SIGSTOP)
            opening = asyncio.ensure_future(doors.open(row_of(other, state), NOTHING))
            await eventually(lambda: doors._client._waiting)  # pyright: ignore[reportPrivateUsage]
            os.kill(first, signal.SIGKILL)
            await opening
            for instance in (one, other):
                assert await calls(instance) in REFUSED
                await instance.kill()

    play(state_dir, scene)


def test_another_service_takes_a_door_over_as_it_is(state_dir: Path) -> None:
    async def scene(yard: Yard) -> None:
        async with doors_of(yard) as doors:
            instance = await yard.create(exits=True)
            await doors.open(row_of(instance), NOTHING)
            before = await trusted(instance)
        async with doors_of(yard) as doors:
            await doors.open(row_of(instance), NOTHING)
            await doors.revise(row_of(instance), NOTHING)
            assert await trusted(instance) == before
            first = gateway_pid(yard.state_dir)
            assert first is not None
            os.kill(first, signal.SIGKILL)  # and with it the only one who had the key
            assert await calls(instance) in REFUSED
            assert await trusted(instance) != before
            await instance.kill()

    play(state_dir, scene)


def test_of_two_services_that_open_a_door_again_the_quicker_one_is_trusted(
    module_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both had it, and the gateway died; the slower one had asked for it before it was there."""
    order = GatewayClient.order
    slower: list[GatewayClient] = []

    async def too_early(client: GatewayClient, message: Any, sockets: Any = ()) -> Any:
        if client in slower and isinstance(message, Revise):
            raise NotFound("the gateway has no such door")
        return await order(client, message, sockets)

    async def scene(yard: Yard) -> None:
        async with doors_of(yard) as doors, doors_of(yard) as others:
            instance = await yard.create(exits=True)
            await doors.open(row_of(instance), NOTHING)
            before = await trusted(instance)
            slower.append(others._client)  # pyright: ignore[reportPrivateUsage]
            await others.open(row_of(instance), NOTHING)
            assert await trusted(instance) == before
            await instance.kill()

    monkeypatch.setattr(GatewayClient, "order", too_early)
    play(module_state, scene)


def test_a_keeper_and_a_gateway_that_die_together_are_both_replaced(state_dir: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("an ordinary user's next keeper can't make the sockets anew")

    async def scene(yard: Yard) -> None:
        async with doors_of(yard) as doors:
            instance = await yard.create(exits=True)
            await doors.open(row_of(instance), NOTHING)
            first = gateway_pid(yard.state_dir)
            assert first is not None
            os.kill(int(yard.backend.keeper.facts["pid"]), signal.SIGKILL)
            os.kill(first, signal.SIGKILL)
            # Nobody listens until the next keeper does.
            while (said := await calls(instance)) == b"ConnectionRefusedError\n":
                pass
            assert said in REFUSED
            await instance.kill()

    play(state_dir, scene)


def test_where_no_gateway_can_be_started_the_open_is_refused(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paddock.egress._process.BOOTSTRAP", "raise SystemExit('out of luck')")

    async def scene(yard: Yard) -> None:
        async with doors_of(yard) as doors:
            instance = await yard.create(exits=True)
            with pytest.raises(NotConfigured, match="out of luck"):
                await doors.open(row_of(instance), NOTHING)
            await instance.kill()

    play(state_dir, scene)
