"""What the door needs to let something out: differences, branches, pull requests, artifacts. And nothing else does."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from paddock.audit import AuditLog
from paddock.keeper.layout import ARTIFACTS
from paddock.storage import Artifacts

from ._artifacts import ArtifactResults
from ._asking import Asking
from ._clock import Clock
from ._live import Live
from ._result_source import Known, Sources
from ._result_store import ResultStore
from ._sandboxes import Sandboxes
from ._shelf import Shelf
from ._snapshots import Snapshots
from ._store import Store
from ._tasks import Tasks

if TYPE_CHECKING:
    from ._repositories import CredentialSource
    from ._workspace_results import WorkspaceResults


class Results:
    def __init__(
        self,
        state_dir: Path,
        *,
        store: Store,
        sandboxes: Sandboxes,
        live: Live,
        snapshots: Snapshots,
        shelf: Shelf,
        known: Known,
        credentials: CredentialSource | None,
        audit: AuditLog,
        clock: Clock,
        tasks: Tasks,
        asking: Asking,
    ) -> None:
        self._store, self._shelf, self._credentials = ResultStore(store), shelf, credentials
        self._audit, self._clock, self._tasks, self._asking = audit, clock, tasks, asking
        self._sources = Sources(
            sandboxes=sandboxes, live=live, known=known, snapshots=snapshots, workshops=shelf.workshops
        )
        self.artifacts = ArtifactResults(
            sources=self._sources, store=self._store, contents=Artifacts(state_dir / ARTIFACTS), clock=clock
        )

    @cached_property
    def workspaces(self) -> WorkspaceResults:
        from ._workspace_results import WorkspaceResults  # with all that git needs, which a sandbox does not

        return WorkspaceResults(
            sources=self._sources,
            store=self._store,
            repositories=self._shelf.repositories,
            credentials=self._credentials,
            audit=self._audit,
            clock=self._clock,
            tasks=self._tasks,
            asking=self._asking,
        )
