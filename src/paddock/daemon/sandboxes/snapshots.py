"""Snapshots: make, find, list, delete; and what sandboxes have changed, recorded at a snapshot and at their end."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from paddock import model
from paddock.backends.base import Backend, Paused
from paddock.daemon.access.policies import Policies
from paddock.daemon.context import Component, Context, Operation, handles
from paddock.daemon.store.database import Row, SnapshotRow, SnapshotStore, exactly_one
from paddock.daemon.store.trees import WORKSPACE_OF, own_copy
from paddock.daemon.tasks import in_thread
from paddock.errors import (
    InvalidArgumentError,
    InvalidStateError,
    PaddockError,
    SupervisorUnavailableError,
)
from paddock.linux.descriptors import closing
from paddock.model import mint, replace
from paddock.storage.diff.listing import Listing, list_changes

from . import _copies, validate
from ._copies import Copy

if TYPE_CHECKING:
    from .instance import RunningSandbox

_NAMED = 100


class Snapshots(Component):
    def __init__(self, context: Context, policies: Policies) -> None:
        super().__init__(context)
        self._policies, self._rows = policies, SnapshotStore(self._store)
        self._making: set[str] = set()
        self._unwanted: set[str] = set()
        """Complete ones to delete."""

    async def create(
        self, action: model.CreateSnapshot, row: Row, running: RunningSandbox, op: Operation
    ) -> model.Snapshot:
        model.check_name(action.name, model.IdPrefix.SNAPSHOT)
        running.backend.capabilities.require("freeze", running.backend.name)
        snapshot = self._of(row, op.principal.id)
        name = None if action.takes_name else action.name
        snapshot = replace(snapshot, name=name, policy=row.sandbox.policy)
        workspace = own_copy(row.workspace, snapshot.id)
        template = _changed(running.instance.template, await running.instance.user(action.user), action)
        async with self._unless_kept(SnapshotRow(snapshot, template, workspace=workspace)) as keep:
            copies = _copies.plan(self._pool(), row.id, snapshot.id, None, row.workspace, workspace, at_rest=True)
            await self.copy(running, copies)
            self._rows.whole(snapshot.id)
            await self.record_changes(row, (snapshot.id,), "snapshot")
            if action.takes_name and action.name is not None:
                snapshot = replace(snapshot, name=action.name)
                self._rows.move_name(snapshot)
            op.done({"snapshot": snapshot.id})
            keep()
        return snapshot

    @asynccontextmanager
    async def temporary(
        self, row: Row, running: RunningSandbox, *, tree: str | None = None, ours: bool = False
    ) -> AsyncGenerator[str]:
        """Yield a copy of its tree, or of its workspace's (`tree`), of this instant. Only this block sees it; it is
        deleted afterwards. `ours`: this program itself reads it."""
        running.backend.capabilities.require("freeze", running.backend.name)
        snapshot = self._of(row, row.sandbox.owner)
        # Marked as incomplete: if the daemon dies, the next one deletes it.
        async with self._unless_kept(SnapshotRow(snapshot, running.instance.template)):
            async with self._lanes.exclusive(row.id):
                await self.copy(running, (Copy(tree or row.id, snapshot.id, at_rest=True, ours=ours),))
            yield snapshot.id

    @asynccontextmanager
    async def hibernation(self, row: Row, running: RunningSandbox) -> AsyncGenerator[tuple[SnapshotRow, Paused]]:
        """Make a snapshot that belongs to the sandbox itself, which is paused then. It is deleted, unless the row needs
        it afterwards."""
        snapshot = self._of(row, row.id)
        workspace = own_copy(row.workspace, snapshot.id)
        made = SnapshotRow(snapshot, running.instance.template, workspace=workspace)
        async with self._unless_kept(made) as keep:
            copies = _copies.plan(self._pool(), row.id, snapshot.id, None, row.workspace, workspace, at_rest=True)
            await self._flush(copies)
            try:
                async with running.instance.frozen():
                    # A freeze ends with the supervisor, a pause does not.
                    times = await running.instance.pause()
                    await in_thread(_copies.make, self._pool(), copies)
                    self._rows.whole(snapshot.id)
                    yield made, times
            finally:
                if self._rows.is_hibernation(snapshot.id):
                    keep()

    @asynccontextmanager
    async def _unless_kept(self, row: SnapshotRow) -> AsyncGenerator[Callable[[], None]]:
        """Record a snapshot that the block makes, and delete it after the block unless that kept it."""
        self._rows.add(row)
        self._making.add(row.id)
        kept: list[bool] = []
        try:
            yield lambda: kept.append(True)
        finally:
            try:
                if not kept:
                    await self.discard(row.id)
            finally:  # also where a kill cancels it: the next sweep sees to what stays
                self._making.discard(row.id)

    async def discard_hibernation(self, sandbox: str) -> None:
        """Delete all snapshots on which a sandbox has hibernated."""
        for row in self._rows.list(sandbox):
            await self.discard(row.id)

    async def discard(self, id: model.SnapshotId) -> None:
        """Delete a snapshot of which no caller knows. If the disk is full, the next sweep deletes what stays."""
        try:
            self._rows.remove(id)
        except PaddockError:
            self._unwanted.add(id)
        left = self._rows.get(id)
        if left is None or not left.is_whole:
            await in_thread(self._delete, id)

    async def copy(self, running: RunningSandbox, copies: Sequence[Copy]) -> None:
        """Copy the trees of a living sandbox at one instant. The caller holds its lane alone, and deletes the copies if
        this raises. If the supervisor dies meanwhile, the sandbox ran during the copy: copy once more."""
        await self._flush(copies)
        try:
            async with running.instance.frozen():
                return await in_thread(_copies.make, self._pool(), copies)
        except SupervisorUnavailableError as error:
            if not error.details.get("lost"):
                raise
        async with running.instance.frozen():
            await in_thread(_copies.make, self._pool(), copies, anew=True)

    async def _flush(self, copies: Sequence[Copy]) -> None:
        if _copies.much_is_dirty():  # else the kernel would write it while the sandbox stands
            await asyncio.to_thread(_copies.flush, self._pool(), copies)

    def find(self, reference: str, owner: str) -> SnapshotRow:
        """By id, name, or unique prefix of an id; whole ones only. NotFoundError, InvalidArgumentError,
        InvalidState."""
        found = self._rows.find(owner, reference)
        row = exactly_one(found, "snapshot", reference, hint="`paddock snapshot ls` lists them")
        if not row.is_whole:
            raise InvalidStateError(f"snapshot {row.id} is still being made", hint="wait until it is whole")
        return row

    def get(self, id: str) -> SnapshotRow | None:
        return self._rows.get(id)

    async def spec_from(self, row: SnapshotRow, asked: model.SandboxSpec) -> model.SandboxSpec:
        """Return the spec of a sandbox made from it: its template, and its mounts and level unless others are named.
        Raises InvalidArgumentError."""
        of = row.snapshot
        if asked.template not in (model.SandboxSpec().template, of.template):
            raise InvalidArgumentError(
                f"snapshot {row.id} was made on template {of.template!r}; it cannot be laid over {asked.template!r}",
                hint=f"leave the template out, or name {of.template!r}",
            )
        if asked.mounts and of.spec.mounts:
            raise InvalidArgumentError(
                f"snapshot {row.id} has mounts, and what was written in them: there can be no others",
                hint="leave mounts out, or take a snapshot of a sandbox without any",
            )
        await self.check_layers(row)
        return replace(
            asked,
            template=of.template,
            mounts=asked.mounts or of.spec.mounts,
            snapshot=row.id,
            env={**of.spec.env, **asked.env},
            level=asked.level or of.spec.level,
        )

    def fits(self, row: SnapshotRow, spec: model.SandboxSpec, backend: Backend) -> None:
        """InvalidArgumentError if either is of a level that copies memory as well, and the other is not; or if that
        would be of another size, or with other mounts."""
        limits, mounts = spec.limits, spec.mounts
        of, size = row.snapshot.spec.level, row.snapshot.spec.limits
        if backend.capabilities.memory and mounts != row.snapshot.spec.mounts:
            raise InvalidArgumentError(
                f"snapshot {row.id} has memory, and its system goes on without other mounts",
                hint="leave mounts out, or copy the files in: paddock cp",
            )
        if backend.capabilities.memory and _size(limits) != _size(size):
            raise InvalidArgumentError(
                f"snapshot {row.id} is of {size.memory_mib} MiB of memory, {size.cpus:g} processors and a disk of"
                f" {size.disk_mib} MiB, and goes on with them only",
                hint="leave the limits out",
            )
        if of is None or of is backend.level:
            return
        made_by = next((one for one in self._backends.all() if one.level is of), None)
        if made_by is None or made_by.capabilities.memory or backend.capabilities.memory:
            raise InvalidArgumentError(
                f"snapshot {row.id} was made at level {of.value!r} and cannot go on at level {backend.level.value!r}",
                hint=f"leave the level out, or name {of.value!r}",
            )

    async def check_layers(self, row: SnapshotRow) -> None:
        """Raise InvalidStateError if a layer below its files is gone."""
        names = set(await asyncio.to_thread(self._pool().names))
        below = (
            (f"snapshot {row.id}", row.made_from.layers, f" of template {row.made_from.name!r}"),
            (f"the workspace of snapshot {row.id}", row.workspace.layers if row.workspace else (), ""),
        )
        for what, layers, of in below:
            if missing := [layer for layer in layers if layer not in names]:
                message = f"{what} lies over {', '.join(missing)}{of}, which is gone"
                raise InvalidStateError(message, snapshot=row.id)

    def list(self, source: str | None, op: Operation) -> tuple[model.Snapshot, ...]:
        return tuple(row.snapshot for row in self._rows.list(op.principal.id, source) if row.is_whole)

    @handles(model.DeleteSnapshot)
    async def delete(self, action: model.DeleteSnapshot, op: Operation) -> None:
        row = self.find(action.snapshot, op.principal.id)
        what = f"delete the snapshot {row.id} of {row.snapshot.source}"
        await self._policies.ask("delete", action, op, about=row.id, own=row.snapshot.policy, what=what)
        await self._remove(row.id)

    async def record_changes(self, row: Row, trees: Sequence[str], at: str, *, own: bool = False) -> None:
        """Record what a sandbox has changed in `trees`, which nothing writes to any more. Unrecorded."""
        revision = row.sandbox.policy
        if revision is None:
            return
        rules = (await self._policies.of(revision)).document.audit
        if rules is None or not rules.files:
            return
        if self._pool().driver == "copy":
            message = "this pool copies whole trees: what was changed in one is not known"
            self._audit.event("files.changed", sandbox=row.id, message=message, at=at)
            return
        for tree in trees:
            try:
                found = await asyncio.to_thread(self._look, tree, own)
            except (OSError, PaddockError) as error:
                self._audit.event("files.changed", sandbox=row.id, message=str(error)[:1024], at=at)
                continue
            listed = msgspec.structs.asdict(found)
            self._audit.event("files.changed", sandbox=row.id, at=at, tree=tree, revision=revision, **listed)

    def _look(self, tree: str, own: bool) -> Listing:
        with closing(self._pool().open(tree)) as fd:
            return list_changes(fd, first=_NAMED, own=own)

    def _of(self, row: Row, owner: str) -> model.Snapshot:
        return model.Snapshot(
            id=model.SnapshotId(mint(model.IdPrefix.SNAPSHOT)),
            source=row.id,
            spec=replace(row.sandbox.spec, level=row.sandbox.level),
            template=row.sandbox.template,
            created_at=self._clock.wall(),
            owner=owner,
        )

    async def _remove(self, id: str) -> None:
        """Remove the row, then the tree: a sweep deletes trees without a row."""
        self._rows.remove(id)
        await in_thread(self._delete, id)

    def _delete(self, id: str) -> None:
        self._pool().delete(id)
        self._pool().delete(id + WORKSPACE_OF)

    async def recover(self) -> None:
        """Delete what no task of this daemon makes, and no sandbox sleeps on."""
        for row in self._rows.list():
            wanted = (
                self._rows.is_hibernation(row.id)
                if row.for_hibernation
                else row.is_whole and row.id not in self._unwanted
            )
            if wanted or row.id in self._making:
                continue
            await self._remove(row.id)
            self._unwanted.discard(row.id)
            if not row.for_hibernation:
                message = "the daemon that made it died, or its disk was full; deleted"
                self._audit.event("snapshot.unfinished", snapshot=row.id, message=message)


def _size(limits: model.Limits) -> tuple[float, ...]:
    return limits.memory_mib, limits.cpus, limits.disk_mib, limits.inodes


def _changed(template: model.Template, user: model.User, action: model.CreateSnapshot) -> model.Template:
    """Return the template as sandboxes from the snapshot have it, for commands of `user`. InvalidArgumentError."""
    if not (action.env or action.workdir or action.user):
        return template
    validate.check_env(action.env)
    workdir = action.workdir or template.workdir
    if not workdir.startswith("/") or "\0" in workdir:
        raise InvalidArgumentError(f"workdir={workdir!r} is not an absolute path", hint="begin with /", field="workdir")
    changed = [template.digest, sorted(action.env.items()), workdir, msgspec.structs.astuple(user)]
    return msgspec.structs.replace(
        template,
        digest=hashlib.sha256(json.dumps(changed).encode()).hexdigest(),
        env={**template.env, **action.env},
        workdir=workdir,
        users=(*(one for one in template.users if one.name != user.name), user),
        default_user=user.name,
    )
