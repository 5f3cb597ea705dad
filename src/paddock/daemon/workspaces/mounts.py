"""List what sandboxes changed in copy-on-write mounts, and give it to the caller who applies it on the host."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import os
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from paddock.daemon.context import Component, Context, Operation, handles
from paddock.daemon.sandboxes.instance import RunningSandbox
from paddock.daemon.sandboxes.sandboxes import Sandboxes
from paddock.daemon.sandboxes.snapshots import Snapshots
from paddock.daemon.store.database import Row
from paddock.daemon.tasks import in_thread
from paddock.errors import InvalidArgumentError, PlatformError
from paddock.linux.descriptors import closing
from paddock.model import DiffMount, Mount, MountDiff, MountMode, PromoteMount, Promotion, PromotionPlan

if TYPE_CHECKING:
    from paddock.storage.diff.differences import Promoted
    from paddock.storage.diff.mount_changes import MountChanges, Plan

_NAMED = 100
"""Paths that an audit record names; of all there is a digest."""
_LINE_BYTES = 100
_STEP = re.compile(rb"\d{1,6}(?: \d{1,20}){0,3}", re.ASCII)
T = TypeVar("T")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class MountResults(Component):
    """Read a copy of the sandbox's layers, made at one instant, as an attacker's."""

    def __init__(self, context: Context, sandboxes: Sandboxes, snapshots: Snapshots) -> None:
        super().__init__(context)
        self._sandboxes, self._snapshots = sandboxes, snapshots

    @handles(DiffMount)
    async def diff(self, action: DiffMount, op: Operation) -> MountDiff:
        row, running = await self._sandboxes.reach(action.sandbox, op)
        number, mount = _mount(row, action.target)
        work = self._holding(
            row, running, number, mount, action.paths, lambda changes: changes.report(patch=action.patch)
        )
        # Once begun it continues even if the caller leaves.
        found, patch = await self._tasks.finish(work, name=f"copy {row.id}")
        op.done({"changes": len(found), **({} if patch is None else {"patch_sha256": _sha256(patch)})})
        return MountDiff(sandbox=row.id, target=mount.target, source=mount.source, changes=found, patch=patch)

    @handles(PromoteMount)
    async def promote(self, action: PromoteMount, op: Operation) -> PendingPromotion:
        row, running = await self._sandboxes.reach(action.sandbox, op)
        number, mount = _mount(row, action.target)

        def promoted(plan: Plan) -> Promotion:
            changes = {"applied": plan.changes, "left_out": plan.left_out}
            return Promotion(
                sandbox=row.id, target=mount.target, source=mount.source, dry_run=action.dry_run, **changes
            )

        promoting = PendingPromotion(promoted)

        def begin(changes: MountChanges) -> Plan:
            most_bytes = row.sandbox.spec.limits.disk_mib << 20
            plan = changes.plan(git=action.git, force=action.force, most_bytes=most_bytes)
            nothing = dataclasses.replace(plan, differences=())
            promoting.begin(changes, nothing if action.dry_run else plan, mount.source)
            return plan

        def end(changes: MountChanges, plan: Plan) -> Mapping[bytes, str]:
            promoted, digests = changes.promoted_after(plan, promoting.noted())
            if promoted:
                self._remember(row.id, number, promoted)
            return digests

        async def work(changes: MountChanges) -> None:
            plan = await in_thread(begin, changes)
            promoting.opened(plan)
            try:
                await promoting.written.wait()
            finally:  # also where the daemon leaves meanwhile
                digests = await in_thread(end, changes, plan)
            if promoting.missing is not None:
                op.failed(promoting.missing)
            else:
                op.done(await in_thread(_recorded, mount, plan, digests))

        op.defer()
        promoting.task = self._tasks.start(
            self._holding(row, running, number, mount, action.paths, work), name=f"promote {row.id}", awaited=True
        )
        await promoting.ready()
        return promoting

    async def _holding(
        self,
        row: Row,
        running: RunningSandbox,
        number: int,
        mount: Mount,
        paths: Sequence[str],
        work: Callable[[MountChanges], Coroutine[Any, Any, T]],
    ) -> T:
        """Return what `work` makes of the changes, while a copy of this instant is there."""
        from paddock.storage.diff.mount_changes import mount_changes

        def look(name: str, stack: ExitStack) -> MountChanges:
            tree = self._pool().open(name)
            stack.callback(os.close, tree)
            return stack.enter_context(mount_changes(tree, number, mount.source, paths))

        async with self._sandboxes.explain_death(row), self._snapshots.temporary(row, running, ours=True) as copy:
            with ExitStack() as stack:
                return await work(await asyncio.to_thread(look, copy, stack))

    def _remember(self, name: str, number: int, promoted: Promoted) -> None:
        from paddock.storage.diff.differences import save_promoted

        # OSError: the sandbox has filled its disk. The next promotion of these files will ask.
        with closing(self._pool().open(name)) as tree, suppress(OSError):
            save_promoted(tree, number, promoted)


class PendingPromotion:
    """Hold a promotion that the caller's process carries out. The copy that it reads stays until it is finished."""

    task: asyncio.Task[None]

    def __init__(self, on_planned: Callable[[Plan], Promotion]) -> None:
        self.plan = PromotionPlan(source="", directory=(0, 0), changes=())
        self.layer = self.journal = -1
        self.written = asyncio.Event()
        self.missing: PlatformError | None = None
        """Set if it ended before all was done."""
        self._begun: asyncio.Future[Plan] = asyncio.get_running_loop().create_future()
        self._on_planned = on_planned

    def begin(self, changes: MountChanges, plan: Plan, source: str) -> None:
        self.plan = changes.message(plan, source)
        self.layer = changes.open_layer()
        self.journal = os.memfd_create("journal", os.MFD_CLOEXEC)

    def opened(self, plan: Plan) -> None:
        self._begun.set_result(plan)

    async def ready(self) -> None:
        try:
            await asyncio.wait((self.task, self._begun), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if self.task.done():
            self._let_go()
            await self.task

    def noted(self) -> list[tuple[int, ...]]:
        """Return the caller's steps. They concern the caller's own files, so they are not verified."""
        most = len(self.plan.changes)
        lines = os.pread(self.journal, _LINE_BYTES * most, 0).splitlines()[:most]
        steps = [tuple(map(int, line.split())) for line in lines if _STEP.fullmatch(line)]
        steps = [step for step in steps if step[0] < most]
        done = len({step[0] for step in steps})
        if done < most:
            self.missing = PlatformError(f"{done} of {most} changes were taken over", hint="call again")
        return steps

    async def finish(self) -> Promotion:
        await self.aclose()
        if self.missing is not None:
            raise self.missing
        return self._on_planned(self._begun.result())

    async def aclose(self) -> None:
        self.written.set()
        try:
            await asyncio.shield(self.task)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        for fd in (self.layer, self.journal):
            if fd != -1:
                os.close(fd)
        self.layer = self.journal = -1


def _mount(row: Row, target: str | None) -> tuple[int, Mount]:
    """Which, and what it is. InvalidArgument."""
    mounts = [(n, m) for n, m in enumerate(row.sandbox.spec.mounts) if m.mode is MountMode.COPY_ON_WRITE]
    found = mounts if target is None else [(n, m) for n, m in mounts if m.target == target.rstrip("/")]
    if len(found) == 1:
        return found[0]
    targets = ", ".join(m.target for _, m in mounts)
    if not mounts:
        raise InvalidArgumentError(f"sandbox {row.id} has no copy-on-write mount", hint="paddock create --mount DIR")
    what = "several copy-on-write mounts" if target is None else f"no copy-on-write mount at {target!r}"
    raise InvalidArgumentError(
        f"sandbox {row.id} has {what}; there are: {targets}", hint="--mount TARGET", field="target"
    )


def _recorded(mount: Mount, plan: Plan, digests: Mapping[bytes, str]) -> dict[str, object]:
    """Return what the audit record keeps: the first paths with the digests of their content, and the digest of all."""
    lines = [
        f"{change.kind.value} {change.path} {digests.get(os.fsencode(change.path), '-')}" for change in plan.changes
    ]
    return {
        "source": mount.source,
        "target": mount.target,
        "changes": len(lines),
        "left_out": len(plan.left_out),
        "sha256": _sha256("\n".join(lines).encode("utf-8", "surrogateescape")),
        "first": lines[:_NAMED],
    }
