"""Create sandboxes: all or none, after any failure or kill."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from paddock import model
from paddock.backends.base import FROZEN, Backend, Instance
from paddock.backends.threads import in_its_own_thread
from paddock.daemon.access.gateways import Gateways
from paddock.daemon.access.policies import Policies, protected
from paddock.daemon.access.secrets import SecretBindings
from paddock.daemon.clock import boot_id
from paddock.daemon.context import Component, Context, Operation, handles
from paddock.daemon.lanes import Hold
from paddock.daemon.store.database import Row, SnapshotRow
from paddock.daemon.store.trees import WorkspaceTree, own_copy
from paddock.daemon.tasks import in_thread
from paddock.errors import (
    AlreadyExistsError,
    InvalidStateError,
    NotFoundError,
    PaddockError,
    ResourceExhaustedError,
    UnsupportedError,
)
from paddock.model import Sandbox, SandboxId, SandboxSpec, State, Template, is_image, mint, replace

from . import _copies, validate
from ._request import CreateRequest
from .cleanup import message_of
from .images import use_image
from .nested import Nested, install
from .running import RunningSandboxes, end
from .snapshots import Snapshots

if TYPE_CHECKING:
    from .sandboxes import Sandboxes

MOST_FORKS = 1000
_log = logging.getLogger("paddock")
_spec_bytes = msgspec.json.Encoder(order="deterministic").encode


class WorkspaceMounts(Protocol):
    """Which sandbox writes which workspace."""

    def reserve(self, reference: str, owner: str) -> AbstractAsyncContextManager[WorkspaceTree]: ...

    def assign(self, row: Row) -> None: ...


class Creation(Component):
    def __init__(
        self,
        context: Context,
        sandboxes: Sandboxes,
        running: RunningSandboxes,
        gateways: Gateways,
        bindings: SecretBindings,
        snapshots: Snapshots,
        policies: Policies,
        nested: Nested,
        workspaces: WorkspaceMounts,
    ) -> None:
        super().__init__(context)
        self._sandboxes, self._running, self._gateways, self._bindings = sandboxes, running, gateways, bindings
        self._snapshots, self._policies = snapshots, policies
        self._nested, self._workspaces = nested, workspaces
        self._boot = boot_id()
        self._built: set[str] = set()

    @handles(model.CreateSandbox)
    async def create(self, action: model.CreateSandbox, op: Operation) -> Sandbox:
        spec, owner = action.spec, op.principal.id
        validate.check_spec(spec)
        if spec.limits.cpus > model.Limits().cpus and spec.limits.cpus > (os.cpu_count() or 1):
            said = "limits.cpus is %g, and this machine has %d: it gets no more than those"
            _log.warning(said, spec.limits.cpus, os.cpu_count())
        if action.idempotency_key is not None:
            validate.check_key(action.idempotency_key)
        source, policy, workspace = None, None, None
        async with AsyncExitStack() as holds:  # until the row says what it needs
            if spec.snapshot is None:
                template = await self._template(spec.template, holds)
            else:
                source = self._snapshots.find(spec.snapshot, owner)
                template, spec = source.made_from, await self._snapshots.spec_from(source, spec)
            backend = self._backends.choose(spec.level)
            for capability in validate.required_capabilities(spec, source):
                backend.capabilities.require(capability, backend.name)
            if source is not None:
                if backend.capabilities.memory and spec.limits == model.Limits():  # what has memory has a size
                    spec = replace(spec, limits=source.snapshot.spec.limits)
                self._snapshots.fits(source, spec, backend)
            if spec.mounts:
                self._check_layers(spec.mounts)
            if spec.policy is not None:
                policy = await self._policies.keep(spec.policy)
            elif source is not None and source.snapshot.policy is not None:
                policy = await self._policies.of(source.snapshot.policy)
            outer = self._nested.outer(op.principal)
            if outer is not None:
                self._nested.check(outer, spec, 1)
            if spec.workspace is not None:
                workspace = await holds.enter_async_context(self._workspaces.reserve(spec.workspace, owner))
            protect = protected(policy, template)
            request = CreateRequest(template, backend, policy, protect, inherits=spec.policy is None)
            row = self._new_row(op, spec, request, owner, source, workspace)
            if action.idempotency_key is not None:
                digest = hashlib.sha256(_spec_bytes(action.spec)).hexdigest()
                row = replace(row, idempotency_key=action.idempotency_key, spec_digest=digest)
            full = self._full(spec, 1)

            def also(row: Row) -> None:
                if full is not None:
                    raise full
                if workspace is not None:
                    self._workspaces.assign(row)

            with self._with_spare(request, row) as (row, there):
                known = self._store.add(row, also=None if workspace is full is None else also)
        op.sandbox = row.id if known is None else known.id
        if known is not None:
            self._store.join(known.id, op.session)
            return await self._made_before(known.id, row.spec_digest == known.spec_digest)

        async def fill() -> None:
            limit, pool = spec.limits.disk_mib << 20, self._pool()
            if there:
                return
            if source is None:
                layers, mounts = template.layers, len(spec.mounts)
                await in_thread(pool.create, row.id, layers=layers, limit_bytes=limit, mounts=mounts)
            else:
                without = None if source.snapshot.spec.level is backend.level else FROZEN
                trees = (source.workspace, row.workspace)
                copies = _copies.plan(pool, source.id, row.id, limit, *trees, without=without)
                await in_thread(_copies.make, pool, copies)
                if spec.mounts and not source.snapshot.spec.mounts:
                    await in_thread(pool.add_mounts, row.id, len(spec.mounts))

        def recorded() -> None:
            # Without a recorded outcome the sandbox is undone as well.
            named = {} if policy is None else {"policy": policy.revision}
            made = {"level": backend.level.value, "backend": backend.name, "template": template.digest}
            op.done({**made, **named})

        async with self._sandboxes.explain_death(row):
            (row,) = await self._start(request, (row,), fill, recorded)
        return row.sandbox

    @contextmanager
    def _with_spare(self, request: CreateRequest, row: Row) -> Generator[tuple[Row, bool]]:
        """Give the sandbox the id of a complete spare, if there is one, and say so. Without a row it stays a spare."""
        spares = request.backend.spares
        id = None if spares is None else spares.take(request.plan(row, self._config.retention_seconds))
        if spares is None or id is None:
            yield row, False
            return
        try:
            yield replace(row, sandbox=replace(row.sandbox, id=id)), True
        finally:
            if self._store.get(id) is None:
                spares.give_back(id)

    @handles(model.ForkSandbox)
    async def fork(self, action: model.ForkSandbox, op: Operation) -> tuple[Sandbox, ...]:
        parent, running = await self._sandboxes.reach(action.sandbox, op)
        validate.check_range("count", action.count, 1, MOST_FORKS)
        running.backend.capabilities.require("freeze", running.backend.name)
        of, template = parent.sandbox, running.instance.template
        ttl = of.spec.ttl_seconds if action.ttl_seconds is None else action.ttl_seconds
        validate.check_ttl(ttl)
        persistent = of.spec.persistent if action.persistent is None else action.persistent
        spec = replace(of.spec, name=None, ttl_seconds=ttl, workspace=None, persistent=persistent)
        policy = None if of.policy is None else await self._policies.of(of.policy)
        protect = protected(policy, template)
        outer, owner = self._nested.outer(op.principal), of.owner
        if outer is not None:  # children of one have no network
            spec, owner, policy = self._nested.of_fork(outer, spec, action.count), op.principal.id, None
        if (full := self._full(spec, action.count)) is not None:
            raise full
        request = CreateRequest(template, running.backend, policy, protect, inherits=True)
        rows = [self._new_row(op, spec, request, owner, parent) for _ in range(action.count)]
        for row in rows:
            self._store.add(row)
        limit = spec.limits.disk_mib << 20

        async def fill() -> None:
            pool, (first, *others) = self._pool(), rows
            copies = _copies.plan(pool, parent.id, first.id, limit, parent.workspace, first.workspace)
            async with self._sandboxes.exclusive(parent.id, op) as (_, running):
                await self._snapshots.copy(running, copies)
            more = [_copies.plan(pool, first.id, o.id, limit, first.workspace, o.workspace) for o in others]
            await in_thread(lambda: [_copies.make(pool, copies) for copies in more])

        def check() -> None:
            now = self._store.get(parent.id)
            if policy is not None and now is not None and now.sandbox.policy != policy.revision:
                raise InvalidStateError(f"the policy of {parent.id} was changed while it was forked", hint="fork again")

        def recorded() -> None:
            op.done({"children": [row.id for row in rows]})

        return tuple(row.sandbox for row in await self._start(request, rows, fill, recorded, check=check))

    def _full(self, spec: SandboxSpec, count: int) -> ResourceExhaustedError | None:
        """Why `count` more such sandboxes would be too many for what `config.toml` gives all together."""
        for name in ("memory_mib", "disk_mib"):
            if not (most := getattr(self._config, name)):
                continue
            each = [getattr(row.sandbox.spec.limits, name) for row in self._store.list()]
            if sum(each) + count * getattr(spec.limits, name) > most:
                return ResourceExhaustedError(
                    f"the limits of all sandboxes may come to {name}={most} here, and {len(each)} have {sum(each)}",
                    hint=f"kill one that is not needed, ask for less, or raise {name} in config.toml",
                    field=f"limits.{name}",
                )
        return None

    def _new_row(
        self,
        op: Operation,
        spec: SandboxSpec,
        request: CreateRequest,
        owner: str,
        source: SnapshotRow | Row | None,
        workspace: WorkspaceTree | None = None,
    ) -> Row:
        """Return one that isn't recorded yet, made from `source`, over `workspace` or a copy of that of `source`."""
        template, backend, policy = request.template, request.backend, request.policy
        now, id = self._clock.wall(), SandboxId(mint(model.IdPrefix.SANDBOX))
        sandbox = Sandbox(
            id=id,
            spec=spec if spec.policy is None else replace(spec, policy=None),
            state=State.CREATING,
            level=backend.level,
            backend=backend.name,
            template=template.name,
            created_at=now,
            expires_at=now + spec.ttl_seconds,
            owner=owner,
            origin=None if source is None else source.id,
            policy=None if policy is None else policy.revision,
        )
        deadline = self._clock.boottime() + spec.ttl_seconds
        workspace = workspace or own_copy(source and source.workspace, id)
        sessions = () if op.session is None or spec.persistent else (op.session,)
        return Row(sandbox, deadline, self._boot, workspace=workspace, layers=template.layers, sessions=sessions)

    async def _made_before(self, id: SandboxId, same: bool) -> Sandbox:
        """Return what the first call with that key made; waits for it if it is still at it."""
        if not same:
            raise AlreadyExistsError(
                f"that idempotency key made {id} from another spec", hint="a new request needs a new key", sandbox=id
            )
        async with self._lanes.shared(id):
            row = self._store.get(id)
        if row is None or row.state in (State.FAILED, State.CREATING):  # creating, and no request works on it
            reason = row.sandbox.reason or "it did not come to its end" if row else "it was forgotten"
            raise InvalidStateError(f"the first call with that key failed: {reason}", hint="call again", sandbox=id)
        return (await self._running.check(row)).sandbox

    def _check_layers(self, mounts: tuple[model.Mount, ...]) -> None:
        pool = self._pool()
        if not pool.overlay and any(mount.mode is not model.MountMode.READ_WRITE for mount in mounts):
            raise UnsupportedError(
                f"the pool's driver {pool.driver!r} has no layers: a directory can only be mounted read-write",
                hint="paddock doctor; or copy it in: paddock cp",
            )

    async def _template(self, name: str, holds: AsyncExitStack) -> Template:
        try:
            if is_image(name):  # which is looked for again each time
                return (await holds.enter_async_context(use_image(self._context, name))).template
            if name in self._built:
                return self._templates().get(name)  # a look-up from now on
            # In a separate thread: a long build must not block the shared ones.
            template = await in_its_own_thread(self._templates().get, name, _log.info)
        except NotFoundError:
            if is_image(name):
                raise
            known = sorted(self._templates().names())
            raise NotFoundError(
                f"no template {name!r}; there are: {', '.join(known) or 'none'}",
                hint=f"an image of a registry is docker://{name}",
                templates=known,
            ) from None
        self._built.add(name)
        return template

    async def _start(
        self,
        request: CreateRequest,
        rows: Sequence[Row],
        fill: Callable[[], Awaitable[None]],
        recorded: Callable[[], None],
        *,
        check: Callable[[], None] = lambda: None,
    ) -> tuple[Row, ...]:
        """Return the rows of the running sandboxes. `fill` makes their trees. `check`, before they run, and `recorded`,
        after it, may refuse: then they are undone. Call it before the first await after the rows were written."""
        instances: dict[SandboxId, Instance] = {}
        policy = request.policy

        async def create(row: Row) -> None:
            plan = request.plan(row, self._config.retention_seconds)
            plan = plan if policy is None else self._bindings.with_placeholders(plan)
            instance = instances[row.id] = await request.backend.create(plan)
            if row.sandbox.spec.nested:
                await install(instance)
            if policy is not None:
                await self._gateways.open(row, policy)

        async with AsyncExitStack() as lanes:
            holds = [await lanes.enter_async_context(self._lanes.exclusive(row.id)) for row in rows]
            try:
                if policy is not None:
                    origin = rows[0].sandbox.origin if request.inherits else None
                    await self._bindings.prepare(rows, policy.document.secrets, origin)
                await fill()
                if len(rows) == 1:
                    await create(rows[0])
                else:
                    for result in await asyncio.gather(*map(create, rows), return_exceptions=True):
                        if result is not None:
                            raise result
                check()
                with self._store.writing() if len(rows) > 1 else nullcontext():  # a death leaves all or none
                    begun = tuple(self._store.move(row, State.RUNNING) for row in rows)
                recorded()
                for row in begun:
                    self._running.admit(row, request.backend, instances[row.id])
            except BaseException as error:
                undo = self._undo(request.backend, rows, instances, holds, error)
                await self._tasks.complete(undo, name=f"create {rows[0].id}")
                raise
        return begun

    async def _undo(
        self,
        backend: Backend,
        rows: Sequence[Row],
        instances: Mapping[SandboxId, Instance],
        holds: Sequence[Hold],
        error: BaseException,
    ) -> None:
        """Undo all that was begun. A failed step stops no other, and a sweep finds what it leaves."""
        for row, hold in zip(rows, holds, strict=True):
            steps: list[Callable[[], Awaitable[None]]] = []
            if (instance := instances.get(row.id)) is not None:
                steps += [partial(end, instance), partial(backend.forget, row.id)]
            steps += [partial(self._delete, tree) for tree in row.own_trees]
            for step in steps:
                try:
                    await step()
                except Exception as another:
                    error.add_note(f"and undoing it failed: {message_of(another)}")
            self._gateways.forget(row)
            if not hold.overtaken:  # else the kill records it
                try:
                    self._store.move(row, State.FAILED, reason=message_of(error))
                except PaddockError as another:
                    error.add_note(f"and this could not be recorded: {another}")

    async def _delete(self, tree: str) -> None:
        await in_thread(self._pool().delete, tree)
