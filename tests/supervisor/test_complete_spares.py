"""A jail that was made ahead completely becomes the sandbox of the next create, or leaves nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from paddock.backends import SandboxPlan
from paddock.backends.jail import _spares
from paddock.errors import SandboxDiedError
from paddock.linux import proc
from paddock.model import IdPrefix, Limit, Limits, Mount, replace
from paddock.supervisor.plan import PlanError
from tests.backends.spares import settled
from tests.conformance.leaks import Snapshot, wait_until_clean
from tests.orphans import wait_until
from tests.supervisor.conftest import Yard, configure, open_yard, run
from tests.supervisor.test_exits import call, taken
from tests.supervisor.test_jail import children, fresh_state, spawner_of, state_of, supervisor_pid
from tests.supervisor.test_plan import plan as jail_plan

pytestmark = pytest.mark.root
Play = Callable[[Callable[[Yard], Any]], Any]
_STEPS = ("cgroup", "sockets", "clone", "maps", "limits", "overlay", "name", "sizes", "send", "posture")
_OF_A_NETWORK = ("trust", "exits", "places")
_INSIDE = ("unshare", "agent", "root", "pivot", "drop", "filter", "limits", "user", "confine")


class Stock:
    """A yard whose backend makes a spare as soon as it was asked for one of the kind."""

    def __init__(self, yard: Yard) -> None:
        assert yard.backend.spares is not None
        self.yard, self.spares = yard, yard.backend.spares
        self.spares.quiet_seconds, self.spares.count, self.spares.from_create = 0.0, 1, 1

    def plan(self, **changes: Any) -> SandboxPlan:
        """Of a create that has asked for no tree of its own yet."""
        plan = self.yard.plan(**changes)
        self.yard.pool.delete(plan.tree)
        return replace(plan, hostname=_spares.host_name(plan.id))

    async def fill(self, plan: SandboxPlan) -> None:
        assert self.spares.take(plan) is None
        await settled(self.spares)

    def taken(self, plan: SandboxPlan) -> SandboxPlan:
        id = self.spares.take(plan)
        assert id is not None
        return replace(plan, id=id, tree=id, hostname=_spares.host_name(id))

    def trees(self) -> list[str]:
        return [name for name in self.yard.pool.names() if name.startswith(IdPrefix.SANDBOX)]

    async def tidied(self) -> None:
        """No spare is left, nor anything of one."""
        self.spares.count = 0
        await settled(self.spares)
        assert await asyncio.to_thread(wait_until, lambda: not self.trees() and not fresh_state(self.yard.state_dir))


@asynccontextmanager
async def stocked(yard: Yard, **changes: Any) -> AsyncGenerator[tuple[Stock, SandboxPlan]]:
    """A spare that the plan could take."""
    stock = Stock(yard)
    plan = stock.plan(**changes)
    await stock.fill(plan)
    assert len(stock.spares._stock) == 1
    yield stock, plan


async def served(stock: Stock, plan: SandboxPlan) -> None:
    instance = await stock.yard.backend.create(plan)
    assert (await run(instance, "cat", "/etc/hostname", "/etc/hosts"))[1].count(plan.hostname.encode()) >= 1
    await instance.kill()
    await stock.yard.backend.forget(plan.id)
    await asyncio.to_thread(stock.yard.pool.delete, plan.tree)


def test_the_next_create_takes_it_with_its_name_environment_and_record(play: Play, module_state: Path) -> None:
    async def scene(yard: Yard) -> None:
        async with stocked(yard) as (stock, plan):
            assert fresh_state(module_state) == set(), "it is nobody's: no record names it"
            assert (await yard.backend.state()).living == {}
            before = children(supervisor_pid(yard))
            plan = stock.taken(replace(plan, spec=replace(plan.spec, env={"GREETING": "hello"})))
            stock.spares.count = 0  # none is made for the create after this one
            instance = await yard.backend.create(plan)
            record = state_of(module_state, plan.id)
            assert record["pid"] in before, "it was there already"
            assert record["env"]["GREETING"] == "hello"
            assert record["deadline"] == plan.deadline
            assert (await run(instance, "sh", "-c", "hostname; echo $GREETING"))[1].split() == [
                plan.hostname.encode(),
                b"hello",
            ]
            assert (await run(instance, "getent", "hosts", plan.hostname))[0].code == 0
            assert (await yard.backend.state()).living[plan.id] is None
            await instance.kill()
            await yard.backend.forget(plan.id)
            yard.pool.delete(plan.tree)
            await stock.tidied()

    play(scene)


def test_pid_1_keeps_the_deadline_of_the_sandbox_and_not_one_of_the_spare(private_play: Play, state_dir: Path) -> None:
    async def scene(yard: Yard) -> None:
        async with stocked(yard) as (stock, plan):
            plan = replace(stock.taken(plan), deadline=proc.boottime() + 3)
            await yard.backend.create(plan)
            stock.spares.count = 0
            record = state_of(state_dir, plan.id)
            os.kill(supervisor_pid(yard), signal.SIGKILL)
            gone = lambda: not proc.is_same(record["pid"], record["start"], record["boot"])  # noqa: E731
            assert await asyncio.to_thread(wait_until, gone)
            ending = (await yard.backend.state()).living[plan.id]
            assert ending is not None
            assert ending.limit is Limit.TTL
            await yard.backend.forget(plan.id)

    private_play(scene)


def test_other_settings_do_not_take_it(play: Play) -> None:
    async def scene(yard: Yard) -> None:
        async with stocked(yard) as (stock, plan):
            stock.spares.count = 0
            spec = plan.spec
            others = (
                replace(plan, hostname="named"),
                replace(plan, exits=True),
                replace(plan, protect=("/etc",)),
                replace(plan, begun=True),
                replace(plan, instance_id=1),
                replace(plan, spec=replace(spec, limits=Limits(memory_mib=99))),
                replace(plan, spec=replace(spec, mounts=(Mount(source="/srv", target="/srv"),))),
                replace(plan, template=replace(plan.template, env={"OTHER": "1"})),
            )
            assert [stock.spares.take(other) for other in others] == [None] * len(others)
            stock.spares.give_back(stock.taken(replace(plan, spec=replace(spec, idle_seconds=9.0))).id)
            await stock.spares.aclose()
            await stock.tidied()

    play(scene)


def test_one_with_a_network_is_taken_with_its_exits(play: Play) -> None:
    async def scene(yard: Yard) -> None:
        async with stocked(yard, exits=True) as (stock, plan):
            stock.spares.count = 0
            assert stock.spares.take(replace(plan, exits=False)) is None
            plan = stock.taken(plan)
            instance = await yard.backend.create(plan)
            exits = await taken(yard, instance)
            try:
                await call(instance, exits)
            finally:
                exits.close()
            await instance.kill()
            await yard.backend.forget(plan.id)
            yard.pool.delete(plan.tree)
            await stock.tidied()

    play(scene)


@pytest.mark.parametrize("step", [*(f"supervisor:{step}" for step in (*_STEPS, *_OF_A_NETWORK)), *_INSIDE])
def test_one_that_cannot_be_made_leaves_nothing_and_keeps_no_create(step: str, play: Play, module_state: Path) -> None:
    async def scene(yard: Yard) -> None:
        stock = Stock(yard)
        plan = stock.plan(exits=step.removeprefix("supervisor:") in _OF_A_NETWORK)
        await stock.fill(plan)
        for spare in list(stock.spares._stock):  # pyright: ignore[reportPrivateUsage]
            await stock.spares._retire(spare)  # pyright: ignore[reportPrivateUsage]
        (demand,) = stock.spares._demands  # pyright: ignore[reportPrivateUsage]
        yard.backend.fault = step
        with pytest.raises(Exception, match="InjectedFault"):
            await stock.spares._make(demand)  # pyright: ignore[reportPrivateUsage]
        yard.backend.fault = ""
        await stock.tidied()
        yard.pool.create(plan.tree, layers=plan.template.layers)
        await served(stock, plan)

    play(scene)


@pytest.mark.parametrize("fault", ["written", "written!"])
def test_a_create_is_served_though_the_spare_that_it_took_fails(
    fault: str, private_play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(yard: Yard) -> None:
        async with stocked(yard) as (stock, plan):
            stock.spares.count = 0
            asked: list[str] = []
            request = yard.backend.supervisor.request

            async def noted(operation: str, *rest: Any, **fields: Any) -> Any:
                asked.append(operation)
                return await request(operation, *rest, **fields)

            monkeypatch.setattr(yard.backend.supervisor, "request", noted)
            plan = stock.taken(plan)
            yard.backend.fault = f"claim:supervisor:{fault}"
            instance = await yard.backend.create(plan)
            yard.backend.fault = ""
            assert (asked[0], asked[-1]) == ("commit", "create")
            assert (await run(instance, "echo", "served"))[1] == b"served\n"
            await instance.kill()
            await yard.backend.forget(plan.id)
            yard.pool.delete(plan.tree)
            await stock.tidied()

    private_play(scene)


@pytest.mark.parametrize("exits", [False, True])
def test_one_that_was_killed_in_waiting_is_replaced_by_another(
    exits: bool, private_play: Play, state_dir: Path
) -> None:
    async def scene(yard: Yard) -> None:
        async with stocked(yard, exits=exits) as (stock, plan):
            stock.spares.count = 0
            supervisor = supervisor_pid(yard)
            made = [pid for pid in children(supervisor) if pid != spawner_of(supervisor)]
            assert made
            for pid in made:
                os.kill(pid, signal.SIGKILL)
            assert await asyncio.to_thread(wait_until, lambda: not set(made) & set(children(supervisor_pid(yard))))
            await served(stock, stock.taken(plan))
            await stock.tidied()

    private_play(scene)


@pytest.mark.parametrize("exits", [False, True])
def test_those_of_a_supervisor_that_died_are_gone_with_their_trees(exits: bool, private_play: Play) -> None:
    async def scene(yard: Yard) -> None:
        async with stocked(yard, exits=exits) as (stock, plan):
            os.kill(supervisor_pid(yard), signal.SIGKILL)
            assert await asyncio.to_thread(wait_until, lambda: not stock.trees())
            assert len(stock.spares._stock) == 0
            yard.pool.create(plan.tree, layers=plan.template.layers)
            await served(stock, plan)
            await stock.tidied()

    private_play(scene)


def test_they_end_with_their_daemon(state_dir: Path) -> None:
    async def scene() -> None:
        async with open_yard(state_dir) as yard, stocked(yard) as (stock, _):
            assert len(stock.trees()) == 1
        async with open_yard(state_dir) as yard:
            assert Stock(yard).trees() == []

    asyncio.run(scene())


@pytest.mark.parametrize("exits", [False, True])
def test_the_supervisor_ends_those_of_a_connection_that_has_ended(exits: bool, state_dir: Path) -> None:
    configure(state_dir, spares=0)  # else it makes a bare one in place of the one that became complete

    async def scene() -> None:
        async with open_yard(state_dir) as yard:
            await (await yard.create()).kill()
            first = supervisor_pid(yard)
            await asyncio.to_thread(wait_until, lambda: len(children(first)) == 1)  # the spawner
            before = Snapshot.take(state_dir)
            async with stocked(yard, exits=exits) as (stock, plan):
                stock.spares.count = 0
                id = stock.taken(plan).id
                yard.backend.supervisor.close()
                with pytest.raises(SandboxDiedError):
                    await yard.backend.supervisor.request("commit", id=id)
                yard.pool.delete(id)
                assert supervisor_pid(yard) == first
            wait_until_clean(before, state_dir, ignore=("files", "descriptors"))

    asyncio.run(scene())


def test_one_that_is_not_used_ends(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(yard: Yard) -> None:
        monkeypatch.setattr(_spares, "LIFE_SECONDS", 0.05)
        stock = Stock(yard)
        await stock.fill(stock.plan())
        await stock.tidied()

    play(scene)


def test_one_that_was_taken_and_not_used_can_be_taken_again_or_forgotten(play: Play) -> None:
    async def scene(yard: Yard) -> None:
        async with stocked(yard) as (stock, plan):
            stock.spares.count = 0
            first = stock.taken(plan)
            stock.spares.give_back(first.id)
            again = stock.taken(plan)
            assert again.id == first.id
            await yard.backend.forget(again.id)
            with pytest.raises(SandboxDiedError):
                await yard.backend.supervisor.request("commit", id=again.id)
            yard.pool.delete(again.tree)
            await stock.tidied()

    play(scene)


def test_a_commit_changes_nothing_on_which_anything_inside_depends() -> None:
    changed = jail_plan().changed(env={"A": "1"}, deadline=5.0, parent="sb_parent")
    assert (changed.env, changed.deadline, changed.parent) == ({"A": "1"}, 5.0, "sb_parent")
    for name, value in {"memory_bytes": 1 << 40, "tree": "sb_other", "id": "sb_other", "exits": True}.items():
        with pytest.raises(PlanError, match=name):
            jail_plan().changed(**{name: value})
    with pytest.raises(PlanError, match="not an id"):
        jail_plan().changed(parent="../..")
