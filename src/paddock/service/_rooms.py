"""The components of one service, in the order in which each needs those before it."""

from __future__ import annotations

from ._approvals import Approvals
from ._artifacts import ArtifactResults
from ._context import Context
from ._disk_sleep import Restoring
from ._doors import Doors, Egress, LeasedEgress, NoEgress
from ._evidence import Evidence
from ._execs import Execs
from ._files import Files
from ._garbage import Storage
from ._handlers import table
from ._images import ImageRoom
from ._live import LIVE, Live
from ._making import Making
from ._mount_results import MountResults
from ._nested import Nested
from ._policies import Policies
from ._promotion import Promotion
from ._recover import Recovery
from ._remains import Remains
from ._reports import Reports
from ._sandboxes import Sandboxes
from ._secret_leases import Leases, Secrets
from ._shelf import Shelf
from ._snapshots import Snapshots
from ._workspace_results import Sources, WorkspaceResults
from ._workspace_tree import Workspaces
from ._workspaces import Workspaces as Spaces


class Rooms:
    def __init__(
        self,
        context: Context,
        *,
        workspaces: Workspaces | None,
        egress: Egress | None,
        gateway: bool,
        period_seconds: float,
    ) -> None:
        self._context = context
        self.secrets = Secrets(context)
        leases = self.leases = Leases(context, self.secrets)
        approvals = self.approvals = Approvals(context)
        self._doors: Doors | None = None
        if egress is None and gateway:
            egress = self._doors = Doors(context, judge=approvals.judge, secrets=leases.packed)
            leases.changed = self._doors.secret
        egress = LeasedEgress(egress or NoEgress(), leases)
        policies = self.policies = Policies(context, egress, leases, approvals)
        snapshots = self.snapshots = Snapshots(context, policies)
        remains = Remains(context, egress, snapshots)
        nested = Nested(context)
        live = self.live = Live(context, remains, leases, nested)
        restoring = Restoring(context, live, snapshots, egress, policies, leases)
        shelf = self.shelf = Shelf(context)
        spaces = self.workspaces = Spaces(context, live, shelf, policies)
        sandboxes = self.sandboxes = Sandboxes(context, live, snapshots, policies, restoring, self._doors)
        making = self.making = Making(
            context, sandboxes, live, egress, leases, snapshots, policies, nested, workspaces or spaces
        )
        execs = Execs(context, sandboxes, live, remains, leases, policies)
        files = Files(sandboxes, live, policies)
        promotion = Promotion(sandboxes)
        self.evidence = Evidence(context.state_dir, context.audit, context.clock, context.config)
        images = ImageRoom(context)
        reports = Reports(context, sandboxes, self.evidence, images)
        mount_results = MountResults(context, sandboxes, snapshots)
        sources = Sources(sandboxes, snapshots, spaces, shelf.workshops)
        artifacts = ArtifactResults(context, sources)
        results = WorkspaceResults(context, sources, shelf, policies)
        collectors = (images.candidates, shelf.bases.candidates, shelf.candidates, spaces.candidates)
        self.storage = Storage(context, remains, collectors)
        self.garbage = self.storage.garbage
        self.recovery = Recovery(
            context, live, remains, snapshots, restoring, spaces, shelf, policies, self.garbage, period_seconds
        )
        of_sandboxes = (sandboxes, snapshots, making, execs, files, promotion)
        of_work = (shelf, spaces, mount_results, artifacts, results)
        of_the_machine = (images, reports, self.evidence, self.garbage, self.storage, leases, approvals)
        self.handlers = table((*of_sandboxes, *of_work, *of_the_machine))

    async def resume(self) -> None:
        """See to the network access of sandboxes that live since before this daemon."""
        if self._doors is None:
            return
        rows = self._context.store.list()
        living = [(row, row.sandbox.policy) for row in rows if row.state in LIVE and not row.asleep]
        self._doors.resume(
            [(row, await self.policies.of(policy)) for row, policy in living if policy is not None],
            without=[row for row, policy in living if policy is None],
        )

    def let_go(self) -> None:
        """Let go of the gateway, which goes on for the sandboxes that live on."""
        if self._doors is not None:
            self._doors.aclose()
