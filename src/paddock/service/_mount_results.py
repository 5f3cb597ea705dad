"""What sandboxes have changed in copy-on-write mounts: told, and taken over on the host."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from paddock.errors import InvalidArgument, SandboxDied
from paddock.model import Change, DiffMount, Mount, MountDiff, MountMode, PromoteMount, Promotion
from paddock.storage import MountChanges, Plan, Pool, Seen, keep_promoted, mount_changes

from ._gate import Entry
from ._live import Held, Live
from ._snapshots import Snapshots
from ._store import Row
from ._tasks import Tasks

_NAMED = 100
"""Paths that an audit record names; of all there is a digest."""
T = TypeVar("T")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class MountResults:
    """Reads a copy of the sandbox's layers that was made at one instant, as an attacker's."""

    def __init__(self, *, live: Live, snapshots: Snapshots, pool: Callable[[], Pool], tasks: Tasks) -> None:
        self._live, self._snapshots, self._pool, self._tasks = live, snapshots, pool, tasks

    async def diff(self, action: DiffMount, row: Row, held: Held, entry: Entry) -> MountDiff:
        number, mount = _mount(row, action.target)

        def tell(changes: MountChanges) -> tuple[tuple[Change, ...], bytes | None]:
            return changes.tell(patch=action.patch)

        found, patch = await self._with_changes(row, held, number, mount, action.paths, tell)
        entry.done({"changes": len(found), **({} if patch is None else {"patch_sha256": _sha256(patch)})})
        return MountDiff(sandbox=row.id, target=mount.target, source=mount.source, changes=found, patch=patch)

    async def promote(self, action: PromoteMount, row: Row, held: Held, entry: Entry) -> Promotion:
        number, mount = _mount(row, action.target)

        def promote(changes: MountChanges) -> tuple[Plan, Mapping[bytes, str]]:
            plan = changes.plan(git=action.git, force=action.force)
            if action.dry_run:
                return plan, {}
            promoted, digests = changes.promote(plan)
            self._remember(row.id, number, promoted)
            return plan, digests

        plan, digests = await self._with_changes(row, held, number, mount, action.paths, promote)
        entry.done(_recorded(mount, plan, digests))
        return Promotion(
            sandbox=row.id,
            target=mount.target,
            source=mount.source,
            applied=plan.words,
            left_out=plan.left_out,
            dry_run=action.dry_run,
        )

    async def _with_changes(
        self, row: Row, held: Held, number: int, mount: Mount, paths: Sequence[str], use: Callable[[MountChanges], T]
    ) -> T:
        """What `use` makes of the changes, in a thread. Once begun it goes on, whatever becomes of the caller."""

        def look(name: str) -> T:
            tree = self._pool().open(name)
            try:
                with mount_changes(tree, number, mount.source, paths) as changes:
                    return use(changes)
            finally:
                os.close(tree)

        async def work() -> T:
            try:
                async with self._snapshots.momentary(row, held, ours=True) as copy:
                    return await asyncio.to_thread(look, copy)
            except SandboxDied:
                raise await self._live.dead(row) from None

        return await self._tasks.finish(work(), name=f"undo copy {row.id}")

    def _remember(self, name: str, number: int, promoted: Seen) -> None:
        tree = self._pool().open(name)
        try:
            with suppress(OSError):  # the sandbox has filled its disk: the next promotion of these files will ask
                keep_promoted(tree, number, promoted)
        finally:
            os.close(tree)


def _mount(row: Row, target: str | None) -> tuple[int, Mount]:
    """Which, and what it is. InvalidArgument."""
    mounts = [(n, m) for n, m in enumerate(row.sandbox.spec.mounts) if m.mode is MountMode.COPY_ON_WRITE]
    found = mounts if target is None else [(n, m) for n, m in mounts if m.target == target.rstrip("/")]
    if len(found) == 1:
        return found[0]
    there = ", ".join(m.target for _, m in mounts)
    if not mounts:
        raise InvalidArgument(f"sandbox {row.id} has no copy-on-write mount", hint="paddock create --mount DIR")
    what = "several copy-on-write mounts" if target is None else f"no copy-on-write mount at {target!r}"
    raise InvalidArgument(f"sandbox {row.id} has {what}; there are: {there}", hint="--mount TARGET", field="target")


def _recorded(mount: Mount, plan: Plan, digests: Mapping[bytes, str]) -> dict[str, object]:
    """What the audit record keeps: the first paths with the digests of what was written, and the digest of all."""
    lines = [f"{change.kind.value} {change.path} {digests.get(os.fsencode(change.path), '-')}" for change in plan.words]
    return {
        "source": mount.source,
        "target": mount.target,
        "changes": len(lines),
        "left_out": len(plan.left_out),
        "sha256": _sha256("\n".join(lines).encode("utf-8", "surrogateescape")),
        "first": lines[:_NAMED],
    }
