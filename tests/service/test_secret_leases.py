"""What a sandbox has of secrets: placeholders inside, values outside, and both no longer than it lives."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Mapping
from typing import Any

import pytest
from service_world import ME, Rig, until

from paddock.backends.base import SandboxPlan
from paddock.daemon.access.secrets import SecretBindings
from paddock.daemon.clock import Clock
from paddock.daemon.main.service import Service
from paddock.errors import InvalidArgumentError, PolicyDeniedError, SecretUnavailableError
from paddock.gateway.rules.secrets import BoundSecret, from_bytes, to_bytes
from paddock.model import (
    Binding,
    CreateSandbox,
    ExecSpec,
    KillSandbox,
    RemoveSecret,
    RotateVaultKey,
    RunExec,
    Sandbox,
    SandboxSpec,
    SecretRule,
    SecretSource,
    SecretValue,
    SetSecret,
    StartExec,
    replace,
)
from paddock.policy import Policy
from paddock.storage.secrets import FetchedValue

VALUE = b"correct-horse-battery-staple"
BIND = Binding(host="api.test", header="Authorization")
TRUE = ExecSpec(argv=("true",))
RULES = {"TOKEN": SecretRule(source=SecretSource(stored="CI"), bind=BIND)}


def leases_of(service: Service) -> SecretBindings:
    return service.bindings


async def bounds_of(service: Service, sandbox: Sandbox) -> tuple[BoundSecret, ...]:
    return from_bytes(await leases_of(service).packed(row_of(service, sandbox)))


async def made(service: Service, rules: Mapping[str, SecretRule] = RULES, **spec: Any) -> Sandbox:
    sandbox = await service.perform(CreateSandbox(spec=SandboxSpec(**spec)), ME)
    row = service.store.get(sandbox.id)
    assert row is not None
    await leases_of(service).prepare([row], rules)
    return sandbox


async def kept(service: Service, value: bytes = VALUE, name: str = "CI") -> None:
    await service.perform(SetSecret(name=name, value=SecretValue(value)), ME)


def row_of(service: Service, sandbox: Sandbox) -> Any:
    return service.store.get(sandbox.id)


def plan_of(rig: Rig, sandbox: Sandbox) -> SandboxPlan:
    return rig.world.places[sandbox.id].plan


def told(service: Service) -> list[tuple[str, BoundSecret]]:
    heard: list[tuple[str, BoundSecret]] = []

    async def changed(sandbox: str, bound: BoundSecret) -> None:
        await asyncio.sleep(0)
        heard.append((sandbox, bound))

    leases_of(service).changed = changed
    return heard


async def test_inside_there_is_a_placeholder_under_the_name_of_the_secret(rig: Rig) -> None:
    async with rig.service() as service:
        await kept(service)
        shaped = RULES | {"GH": SecretRule(source=SecretSource(stored="CI"), bind=(BIND,), shape="ghp_" + "*" * 36)}
        sandbox = await made(service, shaped, env={"A": "b"})
        env = leases_of(service).with_placeholders(plan_of(rig, sandbox)).spec.env
        assert env.keys() == {"A", "TOKEN", "GH"}
        assert re.fullmatch("pdk_[A-Za-z0-9]{40}", env["TOKEN"])
        assert re.fullmatch("ghp_[A-Za-z0-9]{36}", env["GH"])
        other = await made(service, shaped)
        assert not set(env.values()) & set(leases_of(service).with_placeholders(plan_of(rig, other)).spec.env.values())
        bounds = {bound.name: bound for bound in await bounds_of(service, sandbox)}
        assert bounds["TOKEN"].placeholder == env["TOKEN"]
        assert bounds["TOKEN"].value == SecretValue(VALUE)
        assert from_bytes(to_bytes(tuple(bounds.values()))) == tuple(bounds.values())


async def test_a_value_in_a_command_line_is_a_placeholder_in_the_record(rig: Rig) -> None:
    async with rig.service() as service:
        await kept(service)
        sandbox = await made(service)
        words = VALUE.decode(), f"-u{VALUE.decode()}@host", base64.b64encode(VALUE).decode()
        await service.perform(RunExec(sandbox=sandbox.id, spec=ExecSpec(argv=("true", *words))), ME)
    log = "".join(path.read_text() for path in (rig.state_dir / "audit").glob("*.jsonl"))
    assert not [word for word in words if word in log]
    assert "pdk_" in log


async def test_a_value_that_cannot_be_had_is_said_before_anything_is_given(rig: Rig) -> None:
    async with rig.service() as service:
        with pytest.raises(SecretUnavailableError, match="secret CI has no value: nobody has set it"):
            await made(service)
        missing = {"TOKEN": SecretRule(source=SecretSource(env="PADDOCK_NO_SUCH"), bind=BIND)}
        with pytest.raises(SecretUnavailableError, match="secret TOKEN has no value: there was no variable"):
            await made(service, missing)
        await kept(service)
        with pytest.raises(InvalidArgumentError, match="and in env as well"):
            await made(service, env={"TOKEN": "mine"})
        with pytest.raises(InvalidArgumentError, match="not a valid name of a secret"):
            await made(service, {"A B": RULES["TOKEN"]})


async def test_who_is_nobody_of_this_machine_uses_nothing_of_it(rig: Rig) -> None:
    everybody = Policy({"everybody": lambda _, __: (True, "a test")})
    async with rig.service(policy=everybody) as service:
        sandbox = await service.perform(CreateSandbox(), ME)
        row = row_of(service, sandbox)
        row = replace(row, sandbox=replace(row.sandbox, owner="tenant:7"))
        sources = (
            SecretSource(env="HOME"),
            SecretSource(file="/etc/hostname"),
            SecretSource(command=("touch", str(rig.state_dir / "ran"))),
            SecretSource(vault="secret/data/ci#token"),
        )
        for source in sources:
            with pytest.raises(PolicyDeniedError, match="nobody of this machine"):
                await leases_of(service).prepare([row], {"TOKEN": SecretRule(source=source, bind=BIND)})
        assert not (rig.state_dir / "ran").exists()


async def test_rotation_and_revocation_have_reached_the_gateway_when_the_action_answers(rig: Rig) -> None:
    async with rig.service() as service:
        await kept(service)
        sandbox, gone = await made(service), await made(service)
        await service.perform(KillSandbox(sandbox=gone.id), ME)
        heard = told(service)
        await kept(service, b"another-value")  # by another program than the one that has made it
        await kept(service, b"of-no-concern", name="OTHER")
        await service.perform(RemoveSecret(name="CI"), ME)
        assert [(id, bound.name, bound.value) for id, bound in heard] == [
            (sandbox.id, "TOKEN", SecretValue(b"another-value")),
            (sandbox.id, "TOKEN", None),
        ]
        assert heard[0][1].bindings == (BIND,)


async def test_a_gateway_that_takes_the_place_of_another_is_given_what_is_kept_now(rig: Rig) -> None:
    async with rig.service() as service:

        async def given() -> list[SecretValue | None]:
            return [one.value for one in from_bytes(await leases_of(service).packed(row_of(service, sandbox)))]

        await kept(service)
        sandbox = await made(service)
        assert await given() == [SecretValue(VALUE)]
        await kept(service, b"another-value")
        assert await given() == [SecretValue(b"another-value")]
        redaction = leases_of(service).redaction(sandbox.id)
        assert redaction is not None
        assert {VALUE, b"another-value"} <= redaction.values.keys()
        await service.perform(RemoveSecret(name="CI"), ME)
        assert await given() == [None]


async def test_a_secret_that_cannot_be_had_here_hinders_no_command(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart of the daemon: it was revoked since."""
    async with rig.service() as service:
        await kept(service)
        sandbox = await made(service, persistent=True)
        row = replace(row_of(service, sandbox), sandbox=replace(sandbox, policy="1"))
        await service.perform(RemoveSecret(name="CI"), ME)
    async with rig.service() as service:
        assert (await leases_of(service).in_environment(row, TRUE)).env.keys() == {"TOKEN"}
        assert await given(service, row) == {"TOKEN": None}


async def given(service: Service, row: Any) -> dict[str, SecretValue | None]:
    return {one.name: one.value for one in from_bytes(await leases_of(service).packed(row))}


async def test_a_secret_is_read_by_the_variables_of_who_made_the_sandbox(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever starts the next daemon, asks it, or forks; when the vault has another key, too. They lie there sealed."""
    sources = {
        "OWN": SecretSource(env="OF_THE_MAKER"),
        "SAID": SecretSource(command=("sh", "-c", "echo $OF_THE_MAKER")),
    }
    rules = {name: SecretRule(source=source, bind=BIND) for name, source in sources.items()}
    values = dict.fromkeys(sources, SecretValue(b"of-the-maker"))
    monkeypatch.setenv("OF_THE_MAKER", "of-the-maker")
    async with rig.service() as service:
        sandbox = await made(service, rules, persistent=True)
    monkeypatch.setenv("OF_THE_MAKER", "of-somebody-else")
    async with rig.service() as service:
        assert await given(service, row_of(service, sandbox)) == values
        await service.perform(RotateVaultKey(), ME)
    async with rig.service() as service:
        assert await given(service, row_of(service, sandbox)) == values
        forked = row_of(service, await service.perform(CreateSandbox(), ME))
        await leases_of(service).prepare([forked], rules, sandbox.id)
        assert await given(service, forked) == values
        named = row_of(service, await service.perform(CreateSandbox(), ME))
        await leases_of(service).prepare([named], rules)
        assert await given(service, named) == dict.fromkeys(sources, SecretValue(b"of-somebody-else"))
    for path in (p for p in rig.state_dir.rglob("*") if p.is_file()):
        assert b"of-the-maker" not in path.read_bytes(), path


async def test_what_is_renewed_is_what_holds_by_then(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another service has set a policy with another source and binding since."""
    own, narrow = asyncio.Event(), Binding(host="api.test", header="Authorization", methods=("GET",))
    begun, later = asyncio.Event(), {"TOKEN": SecretRule(source=SecretSource(file="/second"), bind=narrow)}

    async def fetch(self: Any, name: str, source: SecretSource) -> FetchedValue:
        return FetchedValue(
            SecretValue(f"the-value-of-{source.file}".encode()), 1000.0 if source.file == "/first" else None
        )

    async def sleep(seconds: float) -> None:
        begun.set()
        await own.wait()

    monkeypatch.setattr("paddock.storage.secrets.Fetcher.fetch", fetch)
    monkeypatch.setattr("paddock.daemon.access.secrets._sleep", sleep)
    async with rig.service() as service:
        first = {"TOKEN": SecretRule(source=SecretSource(file="/first"), bind=BIND)}
        sandbox = await made(service, first)
        heard = told(service)
        await begun.wait()
        await leases_of(service).extend(row_of(service, sandbox), later)
        own.set()
        await until(lambda: len(heard) == 1)
        assert heard[0][1].value == SecretValue(b"the-value-of-/second")
        assert heard[0][1].bindings == (narrow,)


async def test_another_service_finds_placeholders_and_fetches_values(rig: Rig) -> None:
    async with rig.service() as first:
        await kept(first)
        sandbox = await made(first, persistent=True)
        before = await bounds_of(first, sandbox)
    async with rig.service() as second:
        assert await bounds_of(second, sandbox) == before
        other = await second.perform(CreateSandbox(), ME)
        assert await bounds_of(second, other) == ()


async def test_what_expires_is_renewed_ahead_of_its_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    now, naps, fetches = [1000.0], list[float](), list[int]()

    async def fetch(self: object, name: str, source: SecretSource) -> FetchedValue:
        fetches.append(1)
        if len(fetches) == 2:
            raise SecretUnavailableError("not this time")
        return FetchedValue(SecretValue(b"value-number-%d" % len(fetches)), 3600.0)

    async def sleep(seconds: float) -> None:
        naps.append(seconds)
        now[0] += seconds
        if len(naps) > 4:
            await asyncio.Event().wait()

    monkeypatch.setattr("paddock.storage.secrets.Fetcher.fetch", fetch)
    monkeypatch.setattr("paddock.daemon.access.secrets._sleep", sleep)
    clock = Clock(wall=lambda: now[0], boottime=lambda: now[0])
    async with rig.service(clock=clock) as service:
        heard = told(service)
        await made(service)
        await until(lambda: len(naps) > 4)
        assert [round(nap) for nap in naps] == [3300, 20, 224, 3300, 3300]
        values = [bound.value and bound.value.data for _, bound in heard]
        assert values == [b"value-number-3", b"value-number-4"]
        assert all(bound.expires_at is not None and bound.expires_at > now[0] - 3600 for _, bound in heard)
    text = "".join(path.read_text() for path in (rig.state_dir / "audit").glob("*.jsonl"))
    assert "not this time" in text
    assert "value-number" not in text


async def test_what_a_command_prints_has_no_value_in_it(rig: Rig) -> None:
    async with rig.service() as service:
        await kept(service)
        sandbox = await made(service)
        placeholder = leases_of(service).with_placeholders(plan_of(rig, sandbox)).spec.env["TOKEN"]
        script = f"printf {VALUE[:9].decode()}; sleep 0.01; printf {VALUE[9:].decode()}; printf {VALUE.hex()} >&2"
        spec = ExecSpec(argv=("sh", "-c", script))
        result = await service.perform(RunExec(sandbox=sandbox.id, spec=spec), ME)
        assert (result.stdout, result.stderr) == (placeholder, placeholder)
        handle = await service.perform(StartExec(sandbox=sandbox.id, spec=spec), ME)
        assert handle.stdout is not None
        came = b""
        while data := await handle.stdout.read(7):
            assert len(data) <= 7
            came += data
        assert came == placeholder.encode()
        await handle.wait()
        await handle.aclose()
        await kept(service, b"rotated-away-from")
        result = await service.perform(RunExec(sandbox=sandbox.id, spec=spec), ME)
        assert result.stdout == placeholder


async def test_a_revision_keeps_the_shape_of_a_placeholder(rig: Rig) -> None:
    async with rig.service() as service:
        await kept(service)
        sandbox = await made(service)
        row, extend, heard = row_of(service, sandbox), leases_of(service).extend, told(service)
        await extend(row, RULES)
        await extend(row, {})
        assert heard == []
        shaped = {"TOKEN": SecretRule(source=SecretSource(stored="CI"), bind=BIND, shape="ghp_" + "*" * 36)}
        with pytest.raises(InvalidArgumentError, match="has its shape"):
            await extend(row, shaped)
        assert leases_of(service)._of(row.id)[0].rule == RULES["TOKEN"]


async def test_nothing_of_a_value_is_kept_with_the_placeholders(rig: Rig) -> None:
    async with rig.service() as service:
        await kept(service)
        await made(service)
    for path in (p for p in rig.state_dir.rglob("*") if p.is_file()):
        assert VALUE not in path.read_bytes(), path
