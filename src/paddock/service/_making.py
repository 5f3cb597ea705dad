"""Bringing sandboxes up: all of them or none, whatever fails or is killed in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from paddock.backends._base import Backend, Instance, SandboxPlan
from paddock.errors import PaddockError, ResourceExhausted
from paddock.model import Level, Noun, Principal, SandboxId, SandboxSpec, State, Template, mint, replace
from paddock.model import Sandbox as SandboxInfo

from ._clock import boot_id
from ._context import Component, Context
from ._doors import Egress
from ._lane import Hold
from ._live import Live, end
from ._nested import Nested
from ._remains import words
from ._secret_leases import Leases
from ._store import Row
from ._tasks import in_thread
from ._workspace_tree import WorkspaceTree, copied, own_trees

if TYPE_CHECKING:
    from paddock.policy.egress import Snapshot

Exit: TypeAlias = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], None]


class Birth(msgspec.Struct, frozen=True):
    """A sandbox that is to be: its row says `creating`."""

    row: Row
    template: Template
    backend: Backend
    policy: Snapshot | None = None
    protect: tuple[str, ...] = ()
    """What nobody inside may change: of a fork what its parent has, whether or not it has the policy."""
    inherits: bool = False
    """The policy came with what it is made of, and so do the variables by which its secrets are read."""

    def plan(self, retention_seconds: float) -> SandboxPlan:
        row, spec = self.row, self.row.sandbox.spec
        return SandboxPlan(
            id=row.id,
            hostname=spec.name or row.id.replace("_", "-"),
            spec=replace(spec, env=Nested.environment(spec)) if spec.nested else spec,
            template=self.template,
            tree=row.id,
            deadline=row.deadline,
            incarnation=row.incarnation,
            parent=Principal(row.sandbox.owner).sandbox,
            trees=() if row.workspace is None else row.workspace.mounts(),
            exits=row.sandbox.policy is not None,
            begun=bool(spec.snapshot or row.sandbox.origin or row.incarnation),
            protect=self.protect,
            retention_seconds=retention_seconds,
        )


class Making(Component):
    def __init__(self, context: Context, live: Live, egress: Egress, leases: Leases) -> None:
        super().__init__(context)
        self._live, self._egress, self._leases = live, egress, leases
        self._boot = boot_id()

    def full(self, spec: SandboxSpec, count: int) -> ResourceExhausted | None:
        """Why `count` more such sandboxes would be too many for what `config.toml` gives all together."""
        for name in ("memory_mib", "disk_mib"):
            if not (most := getattr(self._config, name)):
                continue
            each = [getattr(row.sandbox.spec.limits, name) for row in self._store.list()]
            if sum(each) + count * getattr(spec.limits, name) > most:
                return ResourceExhausted(
                    f"the limits of all sandboxes may come to {name}={most} here, and {len(each)} have {sum(each)}",
                    hint=f"kill one that is not needed, ask for less, or raise {name} in config.toml",
                    field=f"limits.{name}",
                )
        return None

    def row(
        self,
        spec: SandboxSpec,
        template: Template,
        owner: str,
        backend: str,
        level: Level,
        origin: str | None = None,
        workspace: WorkspaceTree | None = None,
        copy_of: WorkspaceTree | None = None,
        policy: Snapshot | None = None,
    ) -> Row:
        """A new one, not recorded yet, over `workspace` or a copy of one."""
        now, boot_now = self._clock.wall(), self._clock.boottime()
        id = SandboxId(mint(Noun.SANDBOX))
        sandbox = SandboxInfo(
            id=id,
            spec=spec if spec.policy is None else replace(spec, policy=None),
            state=State.CREATING,
            level=level,
            backend=backend,
            template=template.name,
            created_at=now,
            expires_at=now + spec.ttl_seconds,
            owner=owner,
            origin=origin,
            policy=None if policy is None else policy.revision,
        )
        return Row(
            sandbox,
            boot_now + spec.ttl_seconds,
            self._boot,
            workspace=workspace or copied(copy_of, id),
            layers=template.layers,
        )

    async def bear(
        self,
        births: Sequence[Birth],
        fill: Callable[[], Awaitable[None]],
        recorded: Callable[[], None],
        *,
        check: Callable[[], None] = lambda: None,
    ) -> tuple[Row, ...]:
        """Return the rows as they run. `fill` makes their trees. `check`, before they run, and `recorded`, after it,
        may refuse, and then they have never been. To be called before the first await after the rows were written."""
        async with AsyncExitStack() as lanes:
            holds = [await lanes.enter_async_context(self._lanes.exclusive(birth.row.id)) for birth in births]
            # Every step's undo is pushed before the step; the last line forgets them all.
            async with AsyncExitStack() as undo:
                for birth, hold in zip(births, holds, strict=True):
                    undo.push(self._fail(birth.row, hold))
                    for tree in own_trees(birth.row):
                        undo.push_async_exit(undo_async(lambda tree=tree: in_thread(self._pool().delete, tree)))
                if (policy := births[0].policy) is not None:  # all that begin together have one
                    for birth in births:
                        undo.callback(self._leases.drop, birth.row.id)
                    origin = births[0].row.sandbox.origin if births[0].inherits else None
                    await self._leases.prepare([birth.row for birth in births], policy.document.secrets, origin)
                await fill()
                instances = await self._create(births, undo)
                for birth, instance in zip(births, instances, strict=True):
                    if birth.row.sandbox.spec.nested:
                        await Nested.furnish(instance)
                    if birth.policy is not None:
                        undo.push_async_exit(undo_async(lambda row=birth.row: self._egress.close(row)))
                        await self._egress.open(birth.row, birth.policy)
                check()
                with self._store.writing() if len(births) > 1 else nullcontext():  # a death leaves all or none
                    running = tuple(self._store.move(birth.row, State.RUNNING) for birth in births)
                recorded()
                for row, birth, instance in zip(running, births, instances, strict=True):
                    self._live.admit(row, birth.backend, instance)
                undo.pop_all()
        return running

    async def _create(self, births: Sequence[Birth], undo: AsyncExitStack) -> Sequence[Instance]:
        async def one(birth: Birth) -> Instance:
            instance = await birth.backend.create(self._plan(birth))
            undo.push_async_exit(undo_async(lambda: self._kill_unborn(birth.backend, instance)))
            return instance

        if len(births) == 1:
            return [await one(births[0])]
        done = await asyncio.gather(*map(one, births), return_exceptions=True)
        instances: list[Instance] = []
        for result in done:
            if isinstance(result, BaseException):
                raise result
            instances.append(result)
        return instances

    def _plan(self, birth: Birth) -> SandboxPlan:
        plan = birth.plan(self._config.retention_seconds)
        return plan if birth.policy is None else self._leases.furnished(plan)

    async def _kill_unborn(self, backend: Backend, instance: Instance) -> None:
        async def kill() -> None:
            await end(instance)
            await backend.forget(instance.id)

        await self._tasks.complete(kill(), name=f"create {instance.id}")

    def _fail(self, row: Row, hold: Hold) -> Exit:
        def fail(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
            if error is None or hold.overtaken:  # then the kill records it
                return
            try:
                self._store.move(row, State.FAILED, reason=words(error), release_key=True)
            except PaddockError as another:
                error.add_note(f"and this could not be recorded: {another}")

        return fail


def undo_async(step: Callable[[], Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """A step of an undo that cannot hide why there is one, nor stop the others. What it leaves, a sweep finds."""

    async def run(kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await step()
        except Exception as another:
            if error is not None:
                error.add_note(f"and undoing it failed: {words(another)}")

    return run
