"""Sandboxes: create, find, list, extend, kill."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import TypeAlias

import msgspec

from paddock.backends._base import Backend, Instance, SandboxPlan
from paddock.errors import (
    AlreadyExists,
    InvalidArgument,
    InvalidState,
    NotFound,
    PaddockError,
    SandboxDied,
    Unsupported,
)
from paddock.model import (
    CreateSandbox,
    ExtendSandbox,
    GetSandbox,
    GetUsage,
    Inspection,
    InspectSandbox,
    KillSandbox,
    Level,
    ListProcesses,
    ListSandboxes,
    Mount,
    MountMode,
    Noun,
    Principal,
    Process,
    Sandbox,
    SandboxId,
    SandboxSpec,
    State,
    Template,
    Usage,
    mint,
)
from paddock.storage._base import Pool

from . import _validate
from ._clock import Clock, boot_id
from ._gate import Entry
from ._lifecycle import Lifecycle
from ._live import Held, Live
from ._providers import Backends, Templates
from ._remains import Remains, died, has_ended, words
from ._store import Key, Row, Store
from ._tasks import Tasks

_LEAST_PREFIX = 6
_CANDIDATES = 8
_spec_bytes = msgspec.json.Encoder(order="deterministic").encode


_Exit: TypeAlias = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], None]


class Sandboxes:
    def __init__(
        self,
        *,
        store: Store,
        lifecycle: Lifecycle,
        live: Live,
        remains: Remains,
        backends: Backends,
        pool: Callable[[], Pool],
        templates: Templates,
        tasks: Tasks,
        clock: Clock,
    ) -> None:
        self._store, self._lifecycle, self._live, self._remains = store, lifecycle, live, remains
        self._backends, self._pool, self._templates = backends, pool, templates
        self._tasks, self._clock = tasks, clock
        self._built: set[str] = set()
        self._boot = boot_id()

    async def create(self, action: CreateSandbox, entry: Entry) -> Sandbox:
        spec = action.spec
        _validate.check_spec(spec)
        key = self._key(action)
        template = await self._template(spec.template)
        backend = self._backends.choose(spec.level)
        if spec.mounts:
            backend.capabilities.require("mounts", backend.name)
            self._check_layers(spec.mounts)
        row = self._new_row(spec, template, entry.principal, backend.name, backend.level)
        with self._live.making(row.id):
            return await self._make(row, key, template, backend, entry)

    async def _make(self, row: Row, key: Key | None, template: Template, backend: Backend, entry: Entry) -> Sandbox:
        spec = row.sandbox.spec
        known = self._store.add(row, key)
        entry.sandbox = row.id if known is None else known.id
        if known is not None:
            assert key is not None
            return await self._made_before(known.id, key.digest == known.digest)
        plan = SandboxPlan(
            id=row.id,
            hostname=spec.name or row.id.replace("_", "-"),
            spec=spec,
            template=template,
            tree=row.id,
            deadline=row.deadline,
        )
        # Every step's undo is pushed before the step; the last line forgets them all.
        async with AsyncExitStack() as undo:
            undo.push(self._fail(row))
            undo.push(_undo(lambda: self._pool().delete(row.id)))
            self._pool().create(
                row.id, layers=template.layers, limit_bytes=spec.limits.disk_mib << 20, mounts=len(spec.mounts)
            )
            instance = await backend.create(plan)
            undo.push_async_exit(_undo_async(lambda: self._kill_unborn(backend, instance)))
            running = self._lifecycle.move(row, State.RUNNING)
            # An outcome that cannot be recorded undoes the sandbox as well.
            entry.done({"level": backend.level.value, "backend": backend.name, "template": template.digest})
            self._live.admit(running, backend, instance)
            undo.pop_all()
        return running.sandbox

    async def get(self, action: GetSandbox, entry: Entry) -> Sandbox:
        return (await self._live.check(self.find(action.sandbox, entry))).sandbox

    async def list(self, action: ListSandboxes, entry: Entry) -> tuple[Sandbox, ...]:
        rows = await self._live.check_all(self._store.list(entry.principal.id, ended=action.ended))
        return tuple(row.sandbox for row in rows if action.ended or not has_ended(row))

    async def extend(self, action: ExtendSandbox, entry: Entry) -> Sandbox:
        _validate.check_ttl(action.ttl_seconds)
        row, held = await self.use(action.sandbox, entry)
        deadline = self._clock.boottime() + action.ttl_seconds
        expires_at = self._clock.wall() + action.ttl_seconds
        try:
            await held.instance.set_deadline(deadline)
        except SandboxDied:
            raise await self._live.dead(row) from None
        if not self._store.set_deadline(row.id, expires_at=expires_at, deadline=deadline):
            raise await self._live.dead(row)
        return msgspec.structs.replace(row.sandbox, expires_at=expires_at)

    async def kill(self, action: KillSandbox, entry: Entry) -> Sandbox:
        row = self.find(action.sandbox, entry)
        # Half a kill is worse than none: once begun it goes on, whatever becomes of the caller.
        return await self._tasks.finish(self._kill(row, entry.principal), name=f"undo sandbox {row.id}: kill")

    async def usage(self, action: GetUsage, entry: Entry) -> Usage:
        row, held = await self.use(action.sandbox, entry)
        try:
            usage = await held.instance.usage()
        except SandboxDied:
            raise await self._live.dead(row) from None
        return self._live.with_disk(held, usage)

    async def processes(self, action: ListProcesses, entry: Entry) -> tuple[Process, ...]:
        row, held = await self.use(action.sandbox, entry)
        try:
            return await held.instance.processes()
        except SandboxDied:
            raise await self._live.dead(row) from None

    async def inspect(self, action: InspectSandbox, entry: Entry) -> Inspection:
        row = await self._live.check(self.find(action.sandbox, entry))
        if row.state is not State.RUNNING:
            return Inspection(sandbox=row.sandbox)
        try:
            held = await self._live.hold(row)
            usage = self._live.with_disk(held, await held.instance.usage())
            posture = await held.instance.posture()
        except SandboxDied:
            return Inspection(sandbox=(await self._live.check(self._store.get(row.id) or row)).sandbox)
        enforced = tuple(sorted(held.backend.capabilities.enforced))
        return Inspection(sandbox=row.sandbox, usage=usage, enforced=enforced, posture=posture)

    def find(self, reference: str, entry: Entry) -> Row:
        """By id, name of a living one, unique prefix of an id, or name of the last ended one; only one's own."""
        row = self._find(reference, entry.principal.id)
        entry.sandbox = row.id
        return row

    def _find(self, reference: str, owner: str) -> Row:
        row = self._store.get(reference)
        if row is not None and row.sandbox.owner == owner:
            return row
        row = self._store.by_name(owner, reference, living=True)
        if row is not None:
            return row
        if reference.startswith(Noun.SANDBOX):
            if len(reference) < _LEAST_PREFIX:
                raise InvalidArgument(f"{reference!r} is too short: a prefix has {_LEAST_PREFIX} characters or more")
            found = self._store.by_prefix(owner, reference, _CANDIDATES + 1)
            if len(found) == 1:
                return found[0]
            if found:
                candidates = [candidate.id for candidate in found[:_CANDIDATES]]
                more = " and more" if len(found) > _CANDIDATES else ""
                raise InvalidArgument(
                    f"{reference!r} is the beginning of {', '.join(candidates)}{more}",
                    hint="give more characters",
                    candidates=candidates,
                )
        row = self._store.by_name(owner, reference, living=False)
        if row is not None:
            return row
        raise NotFound(f"no sandbox {reference!r}", hint="`paddock ls --all` lists them", sandbox=reference)

    async def use(self, reference: str, entry: Entry) -> tuple[Row, Held]:
        """A sandbox that runs, and its instance. SandboxDied says when and why it does not any more."""
        row = self.find(reference, entry)
        if has_ended(row):
            raise died(row.sandbox)
        if row.state is not State.RUNNING:
            raise InvalidState(
                f"sandbox {row.id} is {row.state.value}", hint="wait until it runs", state=row.state.value
            )
        return row, await self._live.hold(row)

    async def _kill(self, row: Row, principal: Principal) -> Sandbox:
        if has_ended(row):
            return row.sandbox
        backend = self._backends.named(row.sandbox.backend)
        if self._live.elsewhere(row, backend):
            raise Unsupported(f"sandbox {row.id} belongs to another program", hint="end it there")
        held = self._live.get(row.id)
        instance = held.instance if held is not None else await backend.adopt(row.id)
        if held is not None:
            held.dying = True
        try:
            if instance is not None:
                with suppress(SandboxDied):
                    await instance.kill()
        except BaseException:
            if held is not None:
                await self._live.release(row.id)  # whatever it is now: the next one who asks will find out
            raise
        try:
            row = self._lifecycle.move(row, State.KILLED, reason=f"killed by {principal.id}")
        except InvalidState:
            row = self._store.get(row.id) or row
        if held is not None:
            await self._live.release(row.id)
        elif instance is not None:
            await instance.aclose()
        await self._remains.bury(row)
        return row.sandbox

    async def _kill_unborn(self, backend: Backend, instance: Instance) -> None:
        async def kill() -> None:
            try:
                await instance.kill()
                await backend.forget(instance.id)
            finally:
                await instance.aclose()

        await self._tasks.finish(kill(), name=f"undo create {instance.id}")

    def _fail(self, row: Row) -> _Exit:
        def fail(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
            if error is None:
                return
            try:
                self._lifecycle.move(row, State.FAILED, reason=words(error), release_key=True)
            except InvalidState:
                # Killed while it was being made; the maker has cleaned up behind it.
                ended = self._store.get(row.id)
                if ended is not None and isinstance(error, InvalidState):
                    raise died(ended.sandbox) from None
            except PaddockError as another:
                error.add_note(f"and this could not be recorded: {another}")

        return fail

    async def _made_before(self, id: SandboxId, same: bool) -> Sandbox:
        """What the first call with that key made; waits for it if it is still at it, here or in another service."""
        if not same:
            raise AlreadyExists(
                f"that idempotency key made {id} from another spec", hint="a new request needs a new key", sandbox=id
            )
        pause = 0.002
        while True:
            row = self._store.get(id)
            if row is None or row.state is State.FAILED:
                reason = row.sandbox.reason if row else "it was forgotten"
                raise InvalidState(f"the first call with that key failed: {reason}", hint="call again", sandbox=id)
            if row.state is not State.CREATING:
                return (await self._live.check(row)).sandbox
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.1)

    def _new_row(self, spec: SandboxSpec, template: Template, principal: Principal, backend: str, level: Level) -> Row:
        now, boot_now = self._clock.wall(), self._clock.boottime()
        sandbox = Sandbox(
            id=SandboxId(mint(Noun.SANDBOX)),
            spec=spec,
            state=State.CREATING,
            level=level,
            backend=backend,
            template=template.name,
            created_at=now,
            expires_at=now + spec.ttl_seconds,
            owner=principal.id,
        )
        return Row(sandbox, boot_now + spec.ttl_seconds, self._boot, self._live.holder)

    def _check_layers(self, mounts: tuple[Mount, ...]) -> None:
        pool = self._pool()
        if not pool.overlay and any(mount.mode is not MountMode.READ_WRITE for mount in mounts):
            raise Unsupported(
                f"the pool's driver {pool.driver!r} has no layers: a directory can only be mounted read-write",
                hint="paddock doctor; or copy it in: paddock cp",
            )

    def _key(self, action: CreateSandbox) -> Key | None:
        if action.idempotency_key is None:
            return None
        _validate.check_key(action.idempotency_key)
        return Key(action.idempotency_key, hashlib.sha256(_spec_bytes(action.spec)).hexdigest())

    async def _template(self, name: str) -> Template:
        try:
            if name in self._built:
                return self._templates.get(name)  # a look-up from now on
            template = await asyncio.to_thread(self._templates.get, name)
        except NotFound:
            known = sorted(self._templates.names())
            raise NotFound(
                f"no template {name!r}; there are: {', '.join(known) or 'none'}",
                hint="name one of those",
                templates=known,
            ) from None
        self._built.add(name)
        return template


def _undo(step: Callable[[], None]) -> _Exit:
    """A step of an undo that cannot hide why there is one, nor stop the others. What it leaves, a sweep finds."""

    def run(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            step()
        except Exception as another:
            if error is not None:
                error.add_note(f"and undoing it failed: {words(another)}")

    return run


def _undo_async(step: Callable[[], Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    async def run(kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await step()
        except Exception as another:
            if error is not None:
                error.add_note(f"and undoing it failed: {words(another)}")

    return run
