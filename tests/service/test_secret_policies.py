"""Secrets that a policy names: given with the sandbox, by placeholder, and inherited by nobody."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from service_world import ME, Rig

from paddock.daemon.access.gateways import Gateways
from paddock.daemon.main.service import Service
from paddock.daemon.store.database import Row
from paddock.errors import SecretUnavailableError
from paddock.gateway.rules.secrets import BoundSecret, from_bytes
from paddock.model import (
    Allow,
    Binding,
    CreateSandbox,
    CreateSnapshot,
    EgressRules,
    ExecSpec,
    ForkSandbox,
    GetSandbox,
    KillSandbox,
    PolicyDocument,
    RollbackSandbox,
    Sandbox,
    SandboxSpec,
    SecretRule,
    SecretSource,
    SecretValue,
    SetPolicy,
    SetSecret,
)
from paddock.policy.network import Snapshot

VALUE = SecretValue(b"correct-horse-battery-staple")
RULE = SecretRule(source=SecretSource(stored="CI"), bind=Binding(host="api.test", header="Authorization"))
PLAIN = PolicyDocument(egress=EgressRules(allow=(Allow(host="api.test", paths=("/**",)),)))
WITH = PolicyDocument(
    egress=EgressRules(allow=(Allow(host="api.test", paths=("/**",), secret="TOKEN"),)), secrets={"TOKEN": RULE}
)


class Given(Gateways):
    """Keeps the secrets that the gateway would be given."""

    def __init__(self, *wired: Any) -> None:
        super().__init__(*wired)
        self.given: dict[tuple[str, int], tuple[BoundSecret, ...]] = {}

    async def open(self, row: Row, snapshot: Snapshot) -> None:
        self.given[row.id, row.instance_id] = from_bytes(await self._bindings.packed(row))

    async def revise(self, row: Row, snapshot: Snapshot) -> None: ...

    def forget(self, row: Row) -> None:
        super().forget(row)
        self.given.pop((row.id, row.instance_id), None)


async def create(service: Service, policy: PolicyDocument | None, **spec: Any) -> Sandbox:
    return await service.perform(CreateSandbox(spec=SandboxSpec(policy=policy, **spec)), ME)


def given(service: Service) -> dict[tuple[str, int], tuple[BoundSecret, ...]]:
    assert isinstance(service.gateways, Given)
    return service.gateways.given


def token(rig: Rig, sandbox: Sandbox) -> str | None:
    return rig.world.places[sandbox.id].plan.spec.env.get("TOKEN")


async def test_a_sandbox_has_the_placeholder_and_the_gateway_the_value(rig: Rig) -> None:
    async with rig.service(gateways=Given) as service:
        await service.perform(SetSecret(name="CI", value=VALUE), ME)
        sandbox = await create(service, WITH)
        (bound,) = given(service)[sandbox.id, 0]
        assert (bound.name, bound.placeholder, bound.value) == ("TOKEN", token(rig, sandbox), VALUE)
        assert "TOKEN" not in sandbox.spec.env
        assert token(rig, await create(service, PLAIN)) is None
        assert token(rig, await create(service, None)) is None
        await service.perform(KillSandbox(sandbox=sandbox.id), ME)
        assert service.bindings.redaction(sandbox.id) is None


async def test_a_secret_without_a_value_refuses_the_create_before_anything_is_made(rig: Rig) -> None:
    async with rig.service(gateways=Given) as service:
        with pytest.raises(SecretUnavailableError, match="nobody has set it"):
            await create(service, WITH)
        assert rig.world.creates == 0
        assert rig.pool.names() == ()


async def test_forks_and_those_from_snapshots_have_placeholders_of_their_own(rig: Rig) -> None:
    async with rig.service(gateways=Given) as service:
        await service.perform(SetSecret(name="CI", value=VALUE), ME)
        rig.pool.create("tp_host")
        parent = await create(service, WITH)
        children = await service.perform(ForkSandbox(sandbox=parent.id, count=2), ME)
        snapshot = await service.perform(CreateSnapshot(sandbox=parent.id), ME)
        again = await create(service, None, snapshot=snapshot.id)
        without = await create(service, PLAIN, snapshot=snapshot.id)
        every = [token(rig, one) for one in (parent, *children, again)]
        assert None not in every
        assert len(set(every)) == 4
        assert token(rig, without) is None
        assert given(service)[without.id, 0] == ()


async def test_a_rollback_keeps_the_placeholder_and_the_secret(rig: Rig) -> None:
    async with rig.service(gateways=Given) as service:
        await service.perform(SetSecret(name="CI", value=VALUE), ME)
        sandbox = await create(service, WITH)
        rig.pool.create("tp_host")
        before = token(rig, sandbox)
        snapshot = await service.perform(CreateSnapshot(sandbox=sandbox.id), ME)
        await service.perform(RollbackSandbox(sandbox=sandbox.id, snapshot=snapshot.id), ME)
        assert token(rig, sandbox) == before
        (bound,) = given(service)[sandbox.id, 1]
        assert (bound.placeholder, bound.value) == (before, VALUE)


async def test_another_policy_gives_a_living_sandbox_its_secrets_before_it_holds(rig: Rig) -> None:
    told: list[BoundSecret] = []
    async with rig.service(gateways=Given) as service:
        leases = service.bindings

        async def changed(sandbox: str, bound: BoundSecret) -> None:
            told.append(bound)

        leases.changed = changed
        plain = await create(service, PLAIN)
        with pytest.raises(SecretUnavailableError, match="nobody has set it"):
            await service.perform(SetPolicy(sandbox=plain.id, policy=WITH), ME)
        assert (await service.perform(GetSandbox(sandbox=plain.id), ME)).policy == plain.policy
        await service.perform(SetSecret(name="CI", value=VALUE), ME)
        await service.perform(SetPolicy(sandbox=plain.id, policy=WITH), ME)
        (bound,) = told
        assert (bound.name, bound.value) == ("TOKEN", VALUE)
        spec = ExecSpec(argv=("true",), env={"A": "b"})
        assert (await leases.in_environment(row_of(service, plain), spec)).env == {"A": "b", "TOKEN": bound.placeholder}
        other = msgspec.structs.replace(RULE, bind=(Binding(host="api.test", query="key"),))
        await service.perform(
            SetPolicy(sandbox=plain.id, policy=msgspec.structs.replace(WITH, secrets={"TOKEN": other})), ME
        )
        assert told[-1].placeholder == bound.placeholder
        assert told[-1].bindings == other.bind
        redaction = leases.redaction(plain.id)
        assert redaction is not None
        assert VALUE.data not in redaction.whole(b"it is " + VALUE.data)


async def test_what_a_living_sandbox_was_given_late_is_known_to_other_services(rig: Rig) -> None:
    async with rig.service(gateways=Given) as service:
        await service.perform(SetSecret(name="CI", value=VALUE), ME)
        plain = await create(service, PLAIN)
        await service.perform(SetPolicy(sandbox=plain.id, policy=WITH), ME)
        given = [
            (await one.bindings.in_environment(row_of(service, plain), ExecSpec(argv=("true",)))).env
            for one in (service, service)
        ]
        assert given[0] == given[1] != {}
        (bound,) = from_bytes(await service.bindings.packed(row_of(service, plain)))
        assert given[0] == {"TOKEN": bound.placeholder}
        redaction = service.bindings.redaction(plain.id)
        assert redaction is not None
        assert VALUE.data not in redaction.whole(VALUE.data)


def row_of(service: Service, sandbox: Sandbox) -> Row:
    row = service.store.get(sandbox.id)
    assert row is not None
    return row
