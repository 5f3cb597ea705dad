from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest
from service_world import ME, Rig, until

from paddock.backends.base import Ending, SandboxPlan
from paddock.daemon.sandboxes.cleanup import _MOST_REMOVALS  # pyright: ignore[reportPrivateUsage]
from paddock.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    LevelUnavailableError,
    NotFoundError,
    PolicyDeniedError,
    SandboxDiedError,
)
from paddock.model import (
    CheckStorage,
    CollectGarbage,
    CreateSandbox,
    ExecSpec,
    ExtendSandbox,
    GetSandbox,
    KillSandbox,
    Level,
    Limit,
    Limits,
    ListAudit,
    ListSandboxes,
    Principal,
    RunExec,
    SandboxId,
    SandboxSpec,
    State,
)


def spec(**fields: object) -> CreateSandbox:
    return CreateSandbox(spec=SandboxSpec(**fields))  # pyright: ignore


def leftovers(rig: Rig) -> tuple[object, ...]:
    return tuple(rig.world.places), rig.pool.names(), tuple((rig.state_dir / "outputs").glob("*"))


async def test_create_gives_a_running_sandbox_with_its_own_tree(rig: Rig) -> None:
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(), ME)
        assert (made.state, made.level, made.owner) == (State.RUNNING, Level.JAIL, ME.id)
        assert rig.pool.names() == (made.id,)
        assert await service.perform(GetSandbox(sandbox=made.id), ME) == made


async def test_kill_leaves_nothing_and_may_be_repeated(rig: Rig) -> None:
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(), ME)
        first = await service.perform(KillSandbox(sandbox=made.id), ME)
        again = await service.perform(KillSandbox(sandbox=made.id), ME)
        assert first.state is again.state is State.KILLED
        assert first.reason == f"killed by {ME.name}"
        await until(lambda: leftovers(rig) == ((), (), ()))


async def test_a_kill_waits_for_the_deletion_of_files_only_if_many_do(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    may, delete = threading.Event(), rig.pool.delete

    def delete_late(name: str) -> None:
        assert may.wait(60)
        delete(name)

    async with rig.service() as service:
        made = [await service.perform(CreateSandbox(), ME) for _ in range(_MOST_REMOVALS + 1)]
        monkeypatch.setattr(rig.pool, "delete", delete_late)
        for one in made[1:]:
            await service.perform(KillSandbox(sandbox=one.id), ME)
        found = await service.perform(CollectGarbage(dry_run=True), ME)
        (trees,) = (check for check in await service.perform(CheckStorage(), ME) if check.name == "trees")
        last = asyncio.ensure_future(service.perform(KillSandbox(sandbox=made[0].id), ME))
        await until(lambda: service.store.existing(made[0].id).state is State.KILLED)
        assert len(rig.pool.names()) == len(made)
        assert not last.done()
        may.set()
        await last
        await until(lambda: leftovers(rig) == ((), (), ()))
        assert "orphan" not in {item.kind for item in found.items}
        assert trees.status == "ok", trees.detail


async def test_a_dead_sandbox_says_when_and_why(rig: Rig) -> None:
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(), ME)
        await rig.world.places[made.id].end(Ending(limit=Limit.MEMORY, reason="init ran out of memory"))
        with pytest.raises(
            SandboxDiedError, match=r"killed at 20.. UTC|init ran out of memory \(memory limit\)"
        ) as caught:
            await service.perform(RunExec(sandbox=made.id, spec=ExecSpec(argv=("true",))), ME)
        assert caught.value.details["limit"] == "memory"
        await until(lambda: leftovers(rig) == ((), (), ()))


async def test_get_tells_the_truth_before_any_sweep(rig: Rig) -> None:
    async with rig.service() as first:
        made = await first.perform(spec(persistent=True), ME)
    await rig.world.places[made.id].end(Ending(limit=Limit.TTL, reason="its time was over"))
    async with rig.service() as second:
        seen = await second.perform(GetSandbox(sandbox=made.id), ME)
        assert (seen.state, seen.limit) == (State.KILLED, Limit.TTL)
        assert await second.perform(ListSandboxes(), ME) == ()
        assert await second.perform(ListSandboxes(ended=True), ME) == (seen,)


async def test_a_later_service_adopts_and_kills(rig: Rig) -> None:
    async with rig.service() as first:
        made = await first.perform(spec(name="work", persistent=True), ME)
    async with rig.service() as second:
        result = await second.perform(RunExec(sandbox="work", spec=ExecSpec(argv=("echo", "hi"))), ME)
        assert result.stdout == "hi\n"
        await second.perform(KillSandbox(sandbox=made.id), ME)
    assert leftovers(rig) == ((), (), ())


@pytest.mark.parametrize("failing", ["pool", "backend", "audit"])
async def test_a_create_that_fails_leaves_nothing(rig: Rig, failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig.service() as service:

        def broken(*_: object, **__: object) -> None:
            raise InternalError("broken on purpose")

        if failing == "pool":
            monkeypatch.setattr(rig.pool, "create", broken)
        elif failing == "backend":
            rig.world.before_create = broken
        else:
            monkeypatch.setattr(service._audit, "outcome", broken)
        with pytest.raises(InternalError, match="on purpose"):
            await service.perform(spec(name="x"), ME)
        monkeypatch.undo()
        assert leftovers(rig) == ((), (), ())
        (row,) = await service.perform(ListSandboxes(ended=True), ME)
        assert row.state is State.FAILED
        assert "on purpose" in (row.reason or "")


async def test_a_create_that_is_cancelled_leaves_nothing(rig: Rig) -> None:
    entered = asyncio.Event()

    def wait(_: object) -> object:
        entered.set()
        return asyncio.Event().wait()

    rig.world.before_create = wait
    async with rig.service() as service, asyncio.TaskGroup() as group:
        create = group.create_task(service.perform(CreateSandbox(), ME))
        await entered.wait()
        create.cancel()
        await asyncio.wait((create,))
        assert create.cancelled()
        assert leftovers(rig) == ((), (), ())
        (row,) = await service.perform(ListSandboxes(ended=True), ME)
        assert row.state is State.FAILED
    outcome = [r for r in records(rig) if r["kind"] == "outcome" and r["action"] == "sandbox.create"]
    assert [r["error"] for r in outcome] == ["cancelled"]


async def test_a_sandbox_killed_while_it_is_made_is_undone(rig: Rig) -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    def wait(_: object) -> object:
        entered.set()
        return go.wait()

    async def kill() -> None:
        await entered.wait()
        killed = await service.perform(KillSandbox(sandbox="x"), ME)
        assert killed.state is State.KILLED
        go.set()

    rig.world.before_create = wait
    async with rig.service() as service:
        made, _ = await asyncio.gather(service.perform(spec(name="x"), ME), kill(), return_exceptions=True)
        assert isinstance(made, SandboxDiedError)
        assert leftovers(rig) == ((), (), ())


async def test_an_idempotency_key_makes_one_sandbox_however_many_ask(rig: Rig) -> None:
    async with rig.service() as service:
        action = CreateSandbox(spec=SandboxSpec(ttl_seconds=77), idempotency_key="k")
        made = await asyncio.gather(*(service.perform(action, ME) for _ in range(40)))
        assert len({m.id for m in made}) == 1
        assert {m.state for m in made} == {State.RUNNING}
        assert rig.world.creates == 1
        with pytest.raises(AlreadyExistsError, match="another spec"):
            await service.perform(CreateSandbox(idempotency_key="k"), ME)


async def test_a_key_whose_create_failed_can_be_used_again(rig: Rig) -> None:
    async with rig.service() as service:
        rig.world.before_create = lambda _: 1 / 0
        action = CreateSandbox(idempotency_key="k")
        with pytest.raises(ZeroDivisionError):
            await service.perform(action, ME)
        rig.world.before_create = None
        assert (await service.perform(action, ME)).state is State.RUNNING


async def test_names_are_unique_among_the_living_of_one_owner(rig: Rig) -> None:
    async with rig.service() as service:
        first = await service.perform(spec(name="a"), ME)
        with pytest.raises(AlreadyExistsError, match="'a'"):
            await service.perform(spec(name="a"), ME)
        await service.perform(KillSandbox(sandbox="a"), ME)
        second = await service.perform(spec(name="a"), ME)
        assert (await service.perform(GetSandbox(sandbox="a"), ME)).id == second.id != first.id


async def test_references_are_ids_unique_prefixes_and_names(rig: Rig) -> None:
    async with rig.service() as service:
        one = await service.perform(CreateSandbox(), ME)
        assert (await service.perform(GetSandbox(sandbox=one.id[:18]), ME)).id == one.id
        two = await service.perform(CreateSandbox(), ME)
        with pytest.raises(InvalidArgumentError) as caught:
            await service.perform(GetSandbox(sandbox=one.id[:6]), ME)
        assert set(caught.value.details["candidates"]) == {one.id, two.id}  # pyright: ignore
        with pytest.raises(InvalidArgumentError, match="too short"):
            await service.perform(GetSandbox(sandbox="sb_1"), ME)
        for unknown in ("nobody", "sb_%%%%%%", "sb_zzzzzzz", ""):
            with pytest.raises(NotFoundError):
                await service.perform(GetSandbox(sandbox=unknown), ME)


async def test_one_owner_never_sees_the_sandboxes_of_another(rig: Rig) -> None:
    from paddock.policy import Policy

    everybody = Policy({"all": lambda *_: (True, "a test")})
    other = Principal("local:4711")
    async with rig.service(policy=everybody) as service:
        made = await service.perform(spec(name="mine"), ME)
        for reference in (made.id, made.id[:18], "mine"):
            with pytest.raises(NotFoundError):
                await service.perform(KillSandbox(sandbox=reference), other)
        assert await service.perform(ListSandboxes(), other) == ()


async def test_of_the_record_one_sees_his_own_and_the_owner_everything(rig: Rig) -> None:
    from paddock.policy import Policy

    everybody = Policy({"all": lambda *_: (True, "a test")})
    other = Principal("key:4711")
    async with rig.service(policy=everybody) as service:
        mine = await service.perform(spec(name="mine"), ME)
        theirs = await service.perform(spec(name="mine"), other)  # of the same name
        await service.perform(KillSandbox(sandbox=theirs.id), other)
        seen = await service.perform(ListAudit(), other)
        assert {record.principal for record in seen} == {other.id}
        assert mine.id not in str(seen)
        asked = await service.perform(ListAudit(sandbox=mine.id), other)
        assert {(record.principal, record.action) for record in asked} <= {(other.id, "audit.list")}
        about = await service.perform(ListAudit(sandbox="mine"), other)
        assert {record.principal for record in about} <= {other.id, None}
        assert mine.id not in str([record for record in about if record.action != "audit.list"])
        assert "sandbox.create" in {record.action for record in about}
        with pytest.raises(PolicyDeniedError, match="its own records"):
            await service.perform(ListAudit(principal=ME.id), other)
        assert {record.principal for record in await service.perform(ListAudit(), ME)} >= {ME.id, other.id}


async def test_a_level_is_given_or_refused_and_process_never_unasked(rig: Rig) -> None:
    rig.world.refusal = "the kernel says no: sysctl x=1"
    async with rig.service() as service:
        for level in (None, Level.JAIL):
            with pytest.raises(LevelUnavailableError, match="sysctl x=1"):
                await service.perform(spec(level=level), ME)
        with pytest.raises(LevelUnavailableError, match="no backend of that level"):
            await service.perform(spec(level=Level.MICROVM), ME)
    rig.world.refusal = None
    async with rig.service(level=Level.PROCESS) as service:
        with pytest.raises(LevelUnavailableError):
            await service.perform(CreateSandbox(), ME)
        assert (await service.perform(spec(level=Level.PROCESS), ME)).level is Level.PROCESS


@pytest.mark.parametrize(
    "fields",
    [
        {"ttl_seconds": 0},
        {"ttl_seconds": float("nan")},
        {"name": "-x"},
        {"name": "sb_x"},
        {"name": "a" * 64},
        {"name": "a\n"},
        {"env": {"A=B": "c"}},
        {"env": {"A": "\0"}},
        {"limits": Limits(memory_mib=0)},
        {"limits": Limits(cpus=float("nan"))},
    ],
)
async def test_a_spec_that_makes_no_sense_makes_nothing(rig: Rig, fields: dict[str, object]) -> None:
    async with rig.service() as service:
        with pytest.raises((InvalidArgumentError, PolicyDeniedError)):
            await service.perform(spec(**fields), ME)
        assert await service.perform(ListSandboxes(ended=True), ME) == ()
        assert leftovers(rig) == ((), (), ())


async def test_an_unknown_template_is_answered_with_the_known_ones(rig: Rig) -> None:
    async with rig.service() as service:
        with pytest.raises(NotFoundError, match="there are: host"):
            await service.perform(spec(template="nope"), ME)


async def test_extend_moves_the_deadline_of_the_instance_and_of_the_row(rig: Rig) -> None:
    async with rig.service() as service:
        made = await service.perform(spec(ttl_seconds=10), ME)
        before = rig.world.places[made.id].deadline
        later = await service.perform(ExtendSandbox(sandbox=made.id, ttl_seconds=1000), ME)
        assert later.expires_at > made.expires_at + 900
        assert rig.world.places[made.id].deadline > before + 900
        assert (await service.perform(GetSandbox(sandbox=made.id), ME)).expires_at == later.expires_at


async def test_what_nobody_can_adopt_dies_with_its_service(rig: Rig) -> None:
    async with rig.service(level=Level.PROCESS, adopt=False) as service:
        made = await service.perform(spec(level=Level.PROCESS), ME)
    async with rig.service(level=Level.PROCESS, adopt=False) as service:
        seen = await service.perform(GetSandbox(sandbox=made.id), ME)
        assert (seen.state, seen.reason) == (State.KILLED, "the program that made it ended")
    assert rig.pool.names() == ()


async def test_closing_lets_all_live_on_and_the_end_of_a_program_ends_its_sandbox(rig: Rig) -> None:
    async with rig.service() as service:
        ended, lives = [await service.perform(CreateSandbox(), ME) for _ in range(2)]
        await service.sandboxes.end(ended.id)
        await service.sandboxes.end(ended.id)
        await service.sandboxes.end(SandboxId("sb_none"))
    async with rig.service() as service:
        seen = await service.perform(GetSandbox(sandbox=ended.id), ME)
        assert (seen.state, seen.reason) == (State.KILLED, "the program that made it ended")
        assert (await service.perform(GetSandbox(sandbox=lives.id), ME)).state is State.RUNNING
        assert rig.pool.names() == (lives.id,)


async def test_closing_undoes_what_is_under_way(rig: Rig) -> None:
    entered = asyncio.Event()

    def wait(_: object) -> object:
        entered.set()
        return asyncio.Event().wait()

    rig.world.before_create = wait
    async with rig.service() as service:
        create = asyncio.ensure_future(service.perform(CreateSandbox(), ME))
        await entered.wait()
    await asyncio.wait((create,))
    assert create.cancelled()
    assert leftovers(rig) == ((), (), ())


async def test_a_kill_is_told_once_and_by_whom(rig: Rig) -> None:
    async with rig.service() as service:
        for _ in range(20):
            made = await service.perform(CreateSandbox(), ME)
            await service.perform(KillSandbox(sandbox=made.id), ME)
            await asyncio.sleep(0)
            assert (await service.perform(GetSandbox(sandbox=made.id), ME)).reason == f"killed by {ME.name}"
    assert [r for r in records(rig) if r["action"] in ("sandbox.ended", "task.failed")] == []


async def test_a_hundred_at_once(rig: Rig) -> None:
    async with rig.service() as service:

        async def live(number: int) -> None:
            made = await service.perform(spec(name=f"n{number}"), ME)
            result = await service.perform(RunExec(sandbox=made.id, spec=ExecSpec(argv=("echo", str(number)))), ME)
            assert result.stdout == f"{number}\n"
            await asyncio.gather(*(service.perform(KillSandbox(sandbox=f"n{number}"), ME) for _ in range(2)))

        for start in range(0, 100, 25):  # the machine is shared: 25 processes at a time
            await asyncio.gather(*map(live, range(start, start + 25)))
        assert await service.perform(ListSandboxes(), ME) == ()
        await until(lambda: leftovers(rig) == ((), (), ()))


def records(rig: Rig) -> list[dict[str, object]]:
    lines: list[str] = []
    for path in sorted(Path(rig.state_dir / "audit").glob("*.jsonl")):
        lines += path.read_text().splitlines()
    return [json.loads(line) for line in lines]


class Spares:
    """Complete spares of a backend, with their trees."""

    def __init__(self, rig: Rig, *names: str) -> None:
        self.there = [SandboxId(name) for name in names]
        for name in names:
            rig.pool.create(name)

    def take(self, plan: SandboxPlan) -> SandboxId | None:
        return self.there.pop() if self.there else None

    def give_back(self, id: SandboxId) -> None:
        self.there.append(id)


async def test_a_create_takes_the_id_and_the_tree_of_a_complete_spare(rig: Rig) -> None:
    rig.world.spares = Spares(rig, "sb_ahead")
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(), ME)
        assert (made.id, made.state) == ("sb_ahead", State.RUNNING)
        other = await service.perform(CreateSandbox(), ME)
        assert set(rig.pool.names()) == {made.id, other.id}


async def test_a_spare_stays_one_if_its_create_gets_no_row(rig: Rig) -> None:
    async with rig.service() as service:
        await service.perform(CreateSandbox(idempotency_key="k"), ME)
        await service.perform(spec(name="taken"), ME)
        rig.world.spares = spares = Spares(rig, "sb_ahead")
        await service.perform(CreateSandbox(idempotency_key="k"), ME)
        assert spares.there == ["sb_ahead"]
        with pytest.raises(AlreadyExistsError):
            await service.perform(spec(name="taken"), ME)
        assert spares.there == ["sb_ahead"]


async def test_a_create_that_fails_leaves_nothing_of_the_spare_that_it_took(rig: Rig) -> None:
    def refuse(plan: SandboxPlan) -> None:
        raise InternalError("it cannot be made")

    rig.world.spares, rig.world.before_create = Spares(rig, "sb_ahead"), refuse
    async with rig.service() as service:
        with pytest.raises(InternalError):
            await service.perform(CreateSandbox(), ME)
        assert leftovers(rig) == ((), (), ())
