"""What sandboxes have changed, recorded where their policy asks for that: at a snapshot, and when they have ended."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from paddock.errors import PaddockError
from paddock.storage._listing import Listing, list_changes

from ._context import Component, Context
from ._policies import Policies
from ._store import Row

_NAMED = 100


class FileChanges(Component):
    def __init__(self, context: Context, policies: Policies) -> None:
        super().__init__(context)
        self._policies = policies

    async def record(self, row: Row, trees: Sequence[str], at: str, *, own: bool = False) -> None:
        """Of `trees`, which nobody writes to any more. What can't be looked at is recorded as that. Unrecorded."""
        revision = row.sandbox.policy
        if revision is None:
            return
        rules = (await self._policies.of(revision)).document.audit
        if rules is None or not rules.files:
            return
        if self._pool().driver == "copy":
            words = "this pool copies whole trees: what was changed in one is not known"
            self._audit.event("files.changed", sandbox=row.id, message=words, at=at)
            return
        for tree in trees:
            try:
                found = await asyncio.to_thread(self._look, tree, own)
            except (OSError, PaddockError) as error:
                self._audit.event("files.changed", sandbox=row.id, message=str(error)[:1024], at=at)
                continue
            self._audit.event(
                "files.changed",
                sandbox=row.id,
                at=at,
                tree=tree,
                revision=revision,
                changes=found.changes,
                sha256=found.sha256,
                whole=found.whole,
                first=found.first,
            )

    def _look(self, tree: str, own: bool) -> Listing:
        fd = self._pool().open(tree)
        try:
            return list_changes(fd, first=_NAMED, own=own)
        finally:
            os.close(fd)
