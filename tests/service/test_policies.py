"""A policy holds from before the first command to after the last, in every sandbox that has it, and never widens."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from service_world import ME, Rig, WorldBackend, until

from paddock.daemon.clock import Clock
from paddock.daemon.main.service import Service
from paddock.daemon.store.database import Row
from paddock.errors import InvalidStateError, NotConfiguredError, PaddockError, PolicyDeniedError, PolicyInvalidError
from paddock.model import (
    Allow,
    CreateSandbox,
    CreateSnapshot,
    DeleteSnapshot,
    EgressRules,
    ExecSpec,
    ForkSandbox,
    GetPolicy,
    GetSandbox,
    KillSandbox,
    PolicyDocument,
    RollbackSandbox,
    RunExec,
    Sandbox,
    SandboxId,
    SandboxSpec,
    SetPolicy,
    StartExec,
    State,
    nested_principal,
)
from paddock.policy.network import Snapshot, compile

pytestmark = pytest.mark.anyio


def document(*hosts: str) -> PolicyDocument:
    return PolicyDocument(egress=EgressRules(allow=tuple(Allow(host=host) for host in hosts)))


ONE, TWO = document("one.test"), document("one.test", "two.test")
FIRST, SECOND = compile(ONE).revision, compile(TWO).revision
TRUE = ExecSpec(argv=("true",))


class Doors:
    """Keeps what it was told, by sandbox and instance."""

    def __init__(self) -> None:
        self.open_: dict[tuple[str, int], str] = {}
        self.told: list[str] = []
        self.fails: PaddockError | None = None
        self.hold: asyncio.Event | None = None

    def made(self, *wired: object) -> Doors:
        return self

    def aclose(self) -> None: ...

    async def open(self, row: Row, snapshot: Snapshot) -> None:
        self.told.append("open")
        if self.fails is not None:
            raise self.fails
        assert row.state in (State.CREATING, State.RESTORING, State.RUNNING)
        self.open_[row.id, row.instance_id] = snapshot.revision

    async def revise(self, row: Row, snapshot: Snapshot) -> None:
        self.told.append("revise")
        if self.hold is not None:
            held, self.hold = self.hold, None
            await held.wait()
        if self.fails is not None:
            raise self.fails
        assert (row.id, row.instance_id) in self.open_
        self.open_[row.id, row.instance_id] = snapshot.revision

    async def withdraw(self, row: Row) -> None:
        self.told.append("withdraw")
        self.open_.pop((row.id, row.instance_id), None)

    def forget(self, row: Row) -> None:
        self.told.append("forget")
        self.open_.pop((row.id, row.instance_id), None)


@pytest.fixture
def doors() -> Doors:
    return Doors()


async def create(service: Service, policy: PolicyDocument | None = None, **spec: Any) -> Sandbox:
    return await service.perform(CreateSandbox(spec=SandboxSpec(policy=policy, **spec)), ME)


async def test_a_policy_holds_before_the_first_command_and_goes_with_the_sandbox(rig: Rig, doors: Doors) -> None:
    async with rig.service(gateways=doors.made) as service:
        sandbox = await create(service, ONE)
        assert (sandbox.policy, sandbox.spec.policy) == (FIRST, None)
        assert doors.open_ == {(sandbox.id, 0): FIRST}
        assert (await service.perform(GetSandbox(sandbox=sandbox.id), ME)).policy == FIRST
        shown = await service.perform(GetPolicy(sandbox=sandbox.id), ME)
        assert (shown.revision, shown.document) == (FIRST, ONE)
        await service.perform(KillSandbox(sandbox=sandbox.id), ME)
        assert doors.open_ == {}


async def test_without_a_policy_nobody_is_told(rig: Rig, doors: Doors) -> None:
    async with rig.service(gateways=doors.made) as service:
        sandbox = await create(service)
        assert sandbox.policy is None
        assert (await service.perform(GetPolicy(sandbox=sandbox.id), ME)).revision is None
        await service.perform(KillSandbox(sandbox=sandbox.id), ME)
        assert doors.told == []


async def test_a_revision_that_was_stored_lately_is_not_stored_again(rig: Rig, doors: Doors) -> None:
    began, later = time.time(), 0.0
    async with rig.service(gateways=doors.made, clock=Clock(wall=lambda: began + later)) as service:
        for later, stored in (
            (0.0, 0.0),
            (60.0, 0.0),
            (86_400.0, 86_400.0),
            (0.0, 0.0),
        ):  # at last the clock is put back
            await create(service, ONE)
            assert service.store.execute("SELECT kept_at FROM policies", ()).fetchall() == [(began + stored,)], later


async def test_a_revision_that_was_deleted_meanwhile_is_stored_again(rig: Rig, doors: Doors) -> None:
    """The clock was wrong for a while, and a sweep came then."""
    async with rig.service(gateways=doors.made) as service:
        await service.policies.keep(ONE)
        service.policies.prune(time.time() + 1)
        await create(service, ONE)
    async with rig.service(gateways=doors.made) as service:
        assert (await service.policies.of(FIRST)).document == ONE


async def test_a_gateway_that_cannot_be_started_undoes_the_create(rig: Rig, doors: Doors) -> None:
    doors.fails = NotConfiguredError("its log")
    async with rig.service(gateways=doors.made) as service:
        with pytest.raises(NotConfiguredError, match="its log"):
            await create(service, ONE)
        assert rig.world.places == {}
        assert rig.pool.names() == ()
        assert doors.told == ["open", "forget"]


async def test_a_policy_that_says_two_things_is_refused_before_anything_is_made(rig: Rig, doors: Doors) -> None:
    async with rig.service(gateways=doors.made) as service:
        with pytest.raises(PolicyInvalidError, match=r"egress\.allow\[0\]\.host"):
            await create(service, document("127.1"))
        assert rig.world.places == {}
        assert doors.told == []


async def test_a_new_policy_holds_when_the_call_returns(rig: Rig, doors: Doors) -> None:
    async with rig.service(gateways=doors.made) as service:
        id = (await create(service, ONE)).id
        assert (await service.perform(SetPolicy(sandbox=id, policy=TWO, expect_revision=FIRST), ME)).policy == SECOND
        assert doors.open_ == {(id, 0): SECOND}
        with pytest.raises(InvalidStateError, match="changed meanwhile"):
            await service.perform(SetPolicy(sandbox=id, policy=ONE, expect_revision=FIRST), ME)
        assert (await service.perform(SetPolicy(sandbox=id, policy=None), ME)).policy is None
        assert doors.open_ == {}
        assert (await service.perform(SetPolicy(sandbox=id, policy=ONE), ME)).policy == FIRST
        assert doors.open_ == {(id, 0): FIRST}


async def test_a_policy_that_cannot_be_kept_is_not_recorded_for_one_that_had_none(rig: Rig, doors: Doors) -> None:
    async with rig.service(gateways=doors.made) as service:
        id = (await create(service)).id
        doors.fails = NotConfiguredError("no")
        with pytest.raises(NotConfiguredError):
            await service.perform(SetPolicy(sandbox=id, policy=ONE), ME)
        assert (await service.perform(GetSandbox(sandbox=id), ME)).policy is None


async def test_of_two_who_set_one_the_last_that_is_recorded_holds(rig: Rig, doors: Doors) -> None:
    async with rig.service(gateways=doors.made) as service:
        id = (await create(service, ONE)).id
        doors.hold = slow = asyncio.Event()
        first = asyncio.ensure_future(service.perform(SetPolicy(sandbox=id, policy=TWO), ME))
        await until(lambda: "revise" in doors.told)
        second = asyncio.ensure_future(service.perform(SetPolicy(sandbox=id, policy=document("three.test")), ME))
        for _ in range(20):
            await asyncio.sleep(0)
        slow.set()
        await asyncio.gather(first, second)
        last = (await service.perform(GetSandbox(sandbox=id), ME)).policy
        assert doors.open_ == {(id, 0): last}
        assert last == compile(document("three.test")).revision


async def test_a_fork_has_the_policy_of_that_moment(rig: Rig, doors: Doors) -> None:
    async with rig.service(gateways=doors.made) as service:
        parent = await create(service, ONE)
        await service.perform(SetPolicy(sandbox=parent.id, policy=TWO), ME)
        (child,) = await service.perform(ForkSandbox(sandbox=parent.id), ME)
        assert child.policy == SECOND
        await service.perform(SetPolicy(sandbox=parent.id, policy=ONE), ME)
        assert doors.open_ == {(parent.id, 0): FIRST, (child.id, 0): SECOND}


async def test_a_snapshot_keeps_its_own_and_a_named_one_is_that_one_alone(rig: Rig, doors: Doors) -> None:
    rig.pool.create("tp_host")
    async with rig.service(gateways=doors.made) as service:
        source = await create(service, ONE)
        snapshot = await service.perform(CreateSnapshot(sandbox=source.id), ME)
        assert snapshot.policy == FIRST
        await service.perform(SetPolicy(sandbox=source.id, policy=TWO), ME)
        assert (await create(service, snapshot=snapshot.id)).policy == FIRST
        assert (await create(service, document("x.test"), snapshot=snapshot.id)).policy not in (FIRST, SECOND)
        await service.perform(DeleteSnapshot(snapshot=snapshot.id), ME)


async def test_a_rollback_brings_no_policy_back(rig: Rig, doors: Doors) -> None:
    rig.pool.create("tp_host")
    async with rig.service(gateways=doors.made) as service:
        sandbox = await create(service, TWO)
        snapshot = await service.perform(CreateSnapshot(sandbox=sandbox.id), ME)
        await service.perform(SetPolicy(sandbox=sandbox.id, policy=ONE), ME)
        again = await service.perform(RollbackSandbox(sandbox=sandbox.id, snapshot=snapshot.id), ME)
        assert again.policy == FIRST
        assert doors.open_ == {(sandbox.id, 1): FIRST}


async def test_a_rollback_that_gets_no_network_leaves_nothing_at_the_backend(
    rig: Rig, doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the sockets either that came for the gateway."""
    rig.pool.create("tp_host")
    forget, forgotten = WorldBackend.forget, list[str]()

    async def noted(backend: WorldBackend, id: SandboxId) -> None:
        forgotten.append(id)
        await forget(backend, id)

    async with rig.service(gateways=doors.made) as service:
        sandbox = await create(service, ONE)
        snapshot = await service.perform(CreateSnapshot(sandbox=sandbox.id), ME)
        monkeypatch.setattr(WorldBackend, "forget", noted)
        doors.fails = NotConfiguredError("its log")
        with pytest.raises(NotConfiguredError, match="its log"):
            await service.perform(RollbackSandbox(sandbox=sandbox.id, snapshot=snapshot.id), ME)
        assert forgotten == [sandbox.id] * 2, "the one before, and the one that was made"


async def test_a_policy_that_is_being_set_holds_before_it_is_made_again(
    rig: Rig, doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.pool.create("tp_host")
    async with rig.service(gateways=doors.made) as service:
        id = (await create(service, TWO)).id
        snapshot = await service.perform(CreateSnapshot(sandbox=id), ME)
        policies, seen, go = service.policies, asyncio.Event(), asyncio.Event()
        keep = policies.keep

        async def slowly(policy: PolicyDocument) -> Any:
            seen.set()
            await go.wait()
            return await keep(policy)

        monkeypatch.setattr(policies, "keep", slowly)
        setting = asyncio.ensure_future(service.perform(SetPolicy(sandbox=id, policy=ONE), ME))
        await seen.wait()
        rollback = asyncio.ensure_future(service.perform(RollbackSandbox(sandbox=id, snapshot=snapshot.id), ME))
        for _ in range(20):
            await asyncio.sleep(0)
        go.set()
        assert (await setting).policy == FIRST
        await rollback
        assert doors.open_ == {(id, 1): FIRST}
        assert (await service.perform(GetSandbox(sandbox=id), ME)).policy == FIRST


async def test_a_command_is_not_run_under_another_policy_than_expected(rig: Rig, doors: Doors) -> None:
    async with rig.service(gateways=doors.made) as service:
        id = (await create(service, ONE)).id
        assert (await service.perform(RunExec(sandbox=id, spec=TRUE, expect_revision=FIRST), ME)).ok
        for action in (
            RunExec(sandbox=id, spec=TRUE, expect_revision=SECOND),
            StartExec(sandbox=id, spec=TRUE, expect_revision=SECOND),
        ):
            with pytest.raises(InvalidStateError, match=f"{FIRST}, not {SECOND}"):
                await service.perform(action, ME)


async def test_programs_inside_have_no_say(rig: Rig, doors: Doors) -> None:
    async with rig.service(gateways=doors.made) as service:
        id = (await create(service, ONE)).id
        inside = nested_principal(id)
        for action in (
            SetPolicy(sandbox=id, policy=TWO),
            GetPolicy(sandbox=id),
            CreateSandbox(spec=SandboxSpec(policy=ONE)),
        ):
            with pytest.raises(PolicyDeniedError):
                await service.perform(action, inside)


async def test_another_service_knows_the_policy_and_the_log_its_digest(rig: Rig, doors: Doors) -> None:
    async with rig.service(gateways=doors.made) as service:
        id = (await create(service, ONE, persistent=True)).id
    async with rig.service(gateways=doors.made) as other:
        assert (await other.perform(GetPolicy(sandbox=id), ME)).document == ONE
        await other.perform(SetPolicy(sandbox=id, policy=TWO), ME)
        assert doors.open_ == {(id, 0): SECOND}
    assert only_the_digest_is_logged(rig.state_dir / "audit", SECOND)


def only_the_digest_is_logged(folder: Path, revision: str) -> bool:
    """As the outcome of an action; and of the document nothing but a digest."""
    logged = "".join(path.read_text() for path in folder.rglob("*") if path.is_file())
    assert "one.test" not in logged
    return revision in logged
