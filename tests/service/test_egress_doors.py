"""Between a service and the gateway's process: doors are opened, and opened again whoever dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paddock.backends import Instance
from paddock.daemon.access import _trust
from paddock.daemon.access.gateways import Gateways
from paddock.daemon.backends import Backends
from paddock.daemon.store.database import Row
from paddock.daemon.tasks import Tasks
from paddock.errors import GatewayUnavailableError, NotConfiguredError, NotFoundError, SupervisorUnavailableError
from paddock.gateway.client import GatewayClient
from paddock.gateway.control import Open, Secret
from paddock.gateway.rules.secrets import BoundSecret, to_bytes
from paddock.model import (
    ApprovalAnswer,
    ApprovalState,
    Binding,
    Level,
    PolicyDocument,
    Sandbox,
    SandboxSpec,
    SecretValue,
    State,
)
from paddock.policy.network import compile
from paddock.wire import duplex
from tests.conftest import gateway_pid
from tests.contexts import context
from tests.gateway.rig import eventually
from tests.supervisor.conftest import Yard, open_yard
from tests.supervisor.conftest import run as execute

# The gateway would wait two seconds for the first words of a silent caller, to refuse it in its own protocol.
_CALL = """
import socket
try:
    with socket.create_connection(("192.0.2.7", 443), 60) as s: s.sendall(bytes(30)); print(len(s.recv(1)))
except ConnectionError as error: print(type(error).__name__)
"""
REFUSED = (b"ConnectionResetError\n", b"ConnectionRefusedError\n", b"0\n")


NOTHING = compile(PolicyDocument())


async def nothing_secret(row: Row) -> bytes:
    return b""


@asynccontextmanager
async def doors_of(yard: Yard, secrets: Callable[[Row], Awaitable[bytes]] = nothing_secret) -> AsyncGenerator[Gateways]:
    failures: list[BaseException] = []
    tasks = Tasks(lambda name, error: failures.append(error))
    of = context(yard.state_dir, tasks=tasks, backends=Backends((yard.backend,)))
    no = ApprovalAnswer(granted=False, state=ApprovalState.DENIED)
    leases: Any = SimpleNamespace(packed=secrets, drop=lambda id: None)
    approvals: Any = SimpleNamespace(judge=lambda request: no)
    doors = Gateways(of, leases, approvals)
    try:
        yield doors
    finally:
        doors.aclose()
        await tasks.aclose()
        of.audit.close()
        of.store.close()
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
            doors.forget(row_of(instance))
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


def test_a_sandbox_that_ends_while_a_gateway_is_replaced_takes_no_other_offline(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(yard: Yard) -> None:
        async with doors_of(yard) as doors:
            one, other = await yard.create(exits=True), await yard.create(exits=True)
            for instance in (one, other):
                await doors.open(row_of(instance), NOTHING)
            write = _trust.write

            def write_without_one(state: Path, id: str, certificate: bytes) -> None:
                if id == one.id:
                    raise FileNotFoundError(id)
                write(state, id, certificate)

            monkeypatch.setattr(_trust, "write", write_without_one)
            first = gateway_pid(yard.state_dir)
            assert first is not None
            os.kill(first, signal.SIGKILL)
            assert await calls(other) in REFUSED
            for instance in (one, other):
                await instance.kill()

    play(state_dir, scene)


def test_a_revision_that_finds_an_open_failing_holds_once_it_can(
    module_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(yard: Yard) -> None:
        async with doors_of(yard) as doors:
            instance = await yard.create(exits=True)
            exits, failures = yard.backend.exits, ["of the open", "of the revision"]

            async def failing(*arguments: Any, **named: Any) -> Any:
                if failures:
                    raise SupervisorUnavailableError(failures.pop(0))
                return await exits(*arguments, **named)

            monkeypatch.setattr(yard.backend, "exits", failing)
            both = doors.open(row_of(instance), NOTHING), doors.revise(row_of(instance), NOTHING)
            told = await asyncio.gather(*both, return_exceptions=True)
            assert [type(error) for error in told] == [SupervisorUnavailableError] * 2
            assert await calls(instance) in REFUSED, "the door opens at last"
            await instance.kill()

    play(module_state, scene)


def test_a_secret_that_is_rotated_while_its_door_is_opened_reaches_the_gateway_after_it(
    module_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered: list[bytes | None] = []
    order = GatewayClient.order
    rotating: list[asyncio.Future[None]] = []

    binding = Binding(host="api.test", header="Authorization")
    second = BoundSecret(name="TOKEN", placeholder="pdk_1", bindings=(binding,), value=SecretValue(b"second"))

    async def packed(row: Row) -> bytes:
        made = to_bytes(())
        rotating.append(asyncio.ensure_future(opened[0].secret(row.id, second)))
        await asyncio.sleep(0)
        return made

    async def noted(client: GatewayClient, message: Any, descriptors: Any = ()) -> Any:
        if isinstance(message, Open | Secret):
            ordered.append(message.secrets if isinstance(message, Open) else message.secret)
        return await order(client, message, descriptors)

    opened: list[Gateways] = []

    async def scene(yard: Yard) -> None:
        async with doors_of(yard, packed) as doors:
            opened.append(doors)
            instance = await yard.create(exits=True)
            await doors.open(row_of(instance, State.CREATING), NOTHING)
            await rotating[0]
            assert ordered == [to_bytes(()), to_bytes(second)]
            await instance.kill()

    monkeypatch.setattr(GatewayClient, "order", noted)
    play(module_state, scene)


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
            await eventually(lambda: doors._client._connection and doors._client._connection._pending)  # pyright: ignore[reportPrivateUsage]
            os.kill(first, signal.SIGKILL)
            await opening
            for instance in (one, other):
                assert await calls(instance) in REFUSED
                await instance.kill()

    play(state_dir, scene)


def test_a_gateway_that_hangs_is_named_and_opens_the_door_when_it_goes_on(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(yard: Yard) -> None:
        async with doors_of(yard) as doors:
            instance = await yard.create(exits=True)
            await doors.open(row_of(instance), NOTHING)
            gateway = gateway_pid(yard.state_dir)
            assert gateway is not None
            os.kill(gateway, signal.SIGSTOP)
            try:
                with monkeypatch.context() as impatient:
                    impatient.setattr(duplex, "LOOK_SECONDS", 0.1)
                    connection = doors._client._connection
                    assert connection is not None
                    connection.expect_answers()  # by the new period
                    with pytest.raises(GatewayUnavailableError, match=f"hangs: process {gateway} has not") as caught:
                        await doors.revise(row_of(instance), NOTHING)
                    impatient.setattr(duplex, "LOOK_SECONDS", 1000.0)  # nobody waits anew
                    together = [doors._client.connect(start=start) for start in (True, False) * 3]
                    for error in await asyncio.gather(*together, return_exceptions=True):
                        assert isinstance(error, GatewayUnavailableError)
                assert f"kill -9 {gateway}" in str(caught.value.hint)
            finally:
                os.kill(gateway, signal.SIGCONT)
            assert await calls(instance) in REFUSED
            assert gateway_pid(yard.state_dir) == gateway
            await instance.kill()

    play(state_dir, scene)


def test_the_next_daemon_sees_to_what_lives_as_it_is_and_to_a_gateway_that_dies_later(state_dir: Path) -> None:
    async def scene(yard: Yard) -> None:
        async with doors_of(yard) as doors:
            instance = await yard.create(exits=True)
            await doors.open(row_of(instance), NOTHING)
            before = await trusted(instance)
        async with doors_of(yard) as doors:
            doors.resume([(row_of(instance), NOTHING)], [])
            await doors.revise(row_of(instance), NOTHING)
            assert await trusted(instance) == before
            first = gateway_pid(yard.state_dir)
            assert first is not None
            os.kill(first, signal.SIGKILL)  # and with it the only one who had the key
            assert await calls(instance) in REFUSED
            assert await trusted(instance) != before
            await instance.kill()

    play(state_dir, scene)


def test_the_next_daemon_takes_back_at_the_gateway_what_the_one_before_had_only_recorded(state_dir: Path) -> None:
    """A policy was taken away, and the daemon died before it told the gateway."""

    async def scene(yard: Yard) -> None:
        async with doors_of(yard) as doors:
            instance, other = await yard.create(exits=True), await yard.create(exits=True)
            await doors.open(row_of(instance), NOTHING)
        async with doors_of(yard) as doors:
            done: list[tuple[object, object]] = []
            order = doors._client.order

            async def noted(what: Any, *descriptors: Any) -> Any:
                try:
                    done.append((what, await order(what, *descriptors)))
                except NotFoundError as error:
                    done.append((what, error))
                    raise

            doors._client.order = noted
            doors.resume([], [row_of(other), row_of(instance)])
            await eventually(lambda: len(done) == 2)
            assert [type(what).__name__ for what, _ in done] == ["Revise", "Revise"]
            assert isinstance(done[0][1], NotFoundError), "it never had a way out, and gets none"
            assert done[1][0].snapshot == NOTHING.to_bytes()
            assert not isinstance(done[1][1], Exception)
            await instance.kill()
            await other.kill()

    play(state_dir, scene)


def test_the_next_daemon_starts_a_gateway_for_what_lives_where_both_have_died(state_dir: Path) -> None:
    async def scene(yard: Yard) -> None:
        async with doors_of(yard) as doors:
            instance, gone = await yard.create(exits=True), await yard.create(exits=True)
            for one in (instance, gone):
                await doors.open(row_of(one), NOTHING)
        first = gateway_pid(yard.state_dir)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await gone.kill()
        async with doors_of(yard) as doors:
            doors.resume([(row_of(gone), NOTHING), (row_of(instance), NOTHING)], [])
            assert await calls(instance) in REFUSED
            await instance.kill()

    play(state_dir, scene)


def test_a_supervisor_and_a_gateway_that_die_together_are_both_replaced(state_dir: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("an ordinary user's next supervisor can't make the sockets anew")

    async def scene(yard: Yard) -> None:
        async with doors_of(yard) as doors:
            instance = await yard.create(exits=True)
            await doors.open(row_of(instance), NOTHING)
            first = gateway_pid(yard.state_dir)
            assert first is not None
            os.kill(int(yard.backend.supervisor.facts["pid"]), signal.SIGKILL)
            os.kill(first, signal.SIGKILL)
            # Nobody listens until the next supervisor does.
            while (said := await calls(instance)) == b"ConnectionRefusedError\n":
                pass
            assert said in REFUSED
            await instance.kill()

    play(state_dir, scene)


def test_where_no_gateway_can_be_started_the_open_is_refused(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paddock.gateway.client.BOOTSTRAP", "raise SystemExit('out of luck')")

    async def scene(yard: Yard) -> None:
        async with doors_of(yard) as doors:
            instance = await yard.create(exits=True)
            with pytest.raises(NotConfiguredError, match="out of luck"):
                await doors.open(row_of(instance), NOTHING)
            await instance.kill()

    play(state_dir, scene)
