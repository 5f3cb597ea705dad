"""Who answers what: the handlers of one service, each given the few things that it needs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from paddock.audit import AuditLog
from paddock.egress._secret_book import to_bytes
from paddock.keeper.layout import PACKAGES
from paddock.model import (
    Noun,
    SandboxId,
)
from paddock.model.caller import environment
from paddock.storage._base import Pool
from paddock.storage.secret_sources import Fetcher

from ._allotment import Allotment
from ._approval_store import ApprovalStore
from ._approvals import Approvals
from ._asking import Asking
from ._bell import bell
from ._clock import Clock
from ._collectors import AbandonedVessels, Memory, OldTemplates, Orphans, Outputs, Packages, Unfinished
from ._conduct import Conduct
from ._config import Config
from ._disk_sleep import DiskSleep
from ._doors import Doors
from ._egress import Egress, NoEgress
from ._evidence import Evidence
from ._execs import Execs
from ._expiry import Expiry
from ._file_changes import FileChanges
from ._files import Files
from ._forks import Forks
from ._garbage import Garbage
from ._images import ImageRoom, UnusedImages
from ._judge import judge
from ._lane import Lanes
from ._lease_store import LeaseStore
from ._leased_egress import LeasedEgress
from ._lifecycle import Lifecycle
from ._live import LIVE, Live
from ._making import Making
from ._mount_results import MountResults
from ._needs import Needs, of_running, of_sandboxes, of_snapshots
from ._nested import Nested, Perform
from ._own_files import OwnFiles
from ._policies import Policies
from ._promotion import Promotion
from ._providers import Backends, Images, Templates
from ._rebirth import Rebirth
from ._recordings import Recordings
from ._recover import Recovery
from ._remains import Remains
from ._reports import Reports
from ._results import Results
from ._rollback import Rollback
from ._sandboxes import Sandboxes
from ._secret_leases import Leases
from ._secrets import Secrets
from ._shelf import Shelf
from ._sleeping import Sleeping
from ._snapshot_store import SnapshotStore
from ._snapshots import Snapshots
from ._spare_trees import SPARE
from ._storage import Storage
from ._store import Store
from ._tasks import Tasks
from ._workspace_collector import WorkspaceCollector
from ._workspace_tree import BESIDE, Workspaces
from ._workspaces import Workspaces as Spaces

if TYPE_CHECKING:
    from ._repositories import CredentialSource


class Rooms:
    def __init__(
        self,
        state_dir: Path,
        *,
        perform: Perform,
        store: Store,
        audit: AuditLog,
        backends: Backends,
        config: Config,
        tasks: Tasks,
        pool: Callable[[], Pool],
        templates: Templates,
        images: Callable[[], Images] | None,
        clock: Clock,
        workspaces: Workspaces | None,
        credentials: CredentialSource | None,
        egress: Egress | None,
        gateway: bool,
        period_seconds: float,
    ) -> None:

        def fetchers(owner: str) -> Fetcher:
            return Fetcher(environment(), lambda name: self.secrets.value(owner, name), clock.wall)

        self._store, lanes = store, Lanes()
        leases = self.leases = Leases(store=LeaseStore(store), fetchers=fetchers, clock=clock, tasks=tasks, audit=audit)
        self.secrets = Secrets.wired(state_dir, store=store, clock=clock, rotated=leases.rotated)
        asked = bell(os.environ, audit=audit, clock=clock, tasks=tasks)
        self.approvals = Approvals(store=ApprovalStore(store), clock=clock, audit=audit, asked=asked)
        self._doors: Doors | None = None
        if egress is None and gateway:
            doors = egress = self._doors = Doors(
                state_dir,
                exits=lambda row: backends.named(row.sandbox.backend).exits(row.id, row.incarnation, make=True),
                tasks=tasks,
                audit=audit,
                judge=partial(judge, store, self.approvals),
                secrets=leases.packed,
            )
            leases.changed = lambda id, bound: doors.secret(SandboxId(id), bound.name, to_bytes(bound))
        self.recordings = Recordings(self._doors, lambda row: self.policies.resume(row))
        egress = LeasedEgress(egress or NoEgress(), leases)
        lifecycle = Lifecycle(store, clock)
        policies = self.policies = Policies(store=store, egress=egress, tasks=tasks, clock=clock, leases=leases)
        changes = FileChanges(policies, audit, pool)
        remains = Remains(
            state_dir,
            store=store,
            lifecycle=lifecycle,
            audit=audit,
            backends=backends,
            pool=pool,
            clock=clock,
            egress=egress,
            changes=changes,
            wake_no_more=lambda id: self.snapshots.forget_sleep(id),
        )
        self.asking = Asking(store=store, policies=policies, approvals=self.approvals)
        allotment = Allotment(store, clock)
        sleeping = Sleeping(
            store=store, lifecycle=lifecycle, audit=audit, clock=clock, without_values=leases.without_values
        )
        live = self.live = Live(
            store=store,
            backends=backends,
            remains=remains,
            pool=pool,
            tasks=tasks,
            lanes=lanes,
            serve=Nested(perform, allotment).serve,
            sleeping=sleeping,
        )
        self.shelf = Shelf(
            state_dir,
            store=store,
            backends=backends,
            pool=pool,
            templates=templates,
            tasks=tasks,
            clock=clock,
            audit=audit,
            credentials=credentials,
            needed=lambda: needs.by_tree(),
        )
        self.workspaces = Spaces.wired(
            state_dir,
            store=store,
            live=live,
            pool=pool,
            clock=clock,
            workshops=self.shelf.workshops,
            bases=self.shelf.bases,
            lanes=lanes,
            repositories=lambda: self.shelf.repositories,
        )
        retention_seconds = config.paused_retention_days * 86_400
        making = Making(
            lifecycle=lifecycle,
            live=live,
            pool=pool,
            tasks=tasks,
            clock=clock,
            egress=egress,
            leases=leases,
            lanes=lanes,
            retention_seconds=retention_seconds,
        )
        rows = SnapshotStore(store)
        snapshots = self.snapshots = Snapshots(
            store=rows, pool=pool, clock=clock, tasks=tasks, lanes=lanes, changes=changes
        )
        rebirth = Rebirth(
            store=store,
            lifecycle=lifecycle,
            live=live,
            pool=pool,
            egress=egress,
            policies=policies,
            leases=leases,
            tasks=tasks,
            retention_seconds=retention_seconds,
        )
        rollback = Rollback(
            lifecycle=lifecycle,
            live=live,
            backends=backends,
            pool=pool,
            snapshots=snapshots,
            tasks=tasks,
            rebirth=rebirth,
            store=store,
            clock=clock,
        )
        disk_sleep = DiskSleep(
            store=store,
            lifecycle=lifecycle,
            live=live,
            backends=backends,
            pool=pool,
            snapshots=snapshots,
            tasks=tasks,
            rebirth=rebirth,
            rollback=rollback,
            egress=egress,
            audit=audit,
            clock=clock,
            retention_seconds=retention_seconds,
        )
        self.sandboxes = Sandboxes(
            store=store,
            lifecycle=lifecycle,
            live=live,
            remains=remains,
            backends=backends,
            pool=pool,
            templates=templates,
            tasks=tasks,
            clock=clock,
            making=making,
            snapshots=snapshots,
            allotment=allotment,
            workspaces=workspaces or self.workspaces,
            has_task=self.workspaces.has_task,
            policies=policies,
            rollback=rollback,
            disk_sleep=disk_sleep,
            lanes=lanes,
        )
        self.forks = Forks(
            store=store,
            live=live,
            pool=pool,
            making=making,
            snapshots=snapshots,
            allotment=allotment,
            policies=policies,
            sandboxes=self.sandboxes,
            tasks=tasks,
        )
        self.promotion = Promotion(sandboxes=self.sandboxes, live=live)
        conduct = Conduct(policies, self.approvals, OwnFiles(pool))
        self.execs = Execs(
            sandboxes=self.sandboxes, live=live, remains=remains, tasks=tasks, leases=leases, conduct=conduct
        )
        self.files = Files(sandboxes=self.sandboxes, live=live, conduct=conduct)
        self.evidence = Evidence(
            state_dir,
            audit,
            os.environ,
            clock,
            most_bytes=config.audit_mib * 2**20 or math.inf,
            most_seconds=config.audit_days * 86_400.0 or math.inf,
        )
        self.reports = Reports(
            state_dir,
            store=store,
            audit=audit,
            backends=backends,
            config=config,
            images=lambda: self.images.checks(pool),
            pool=pool,
            perform=perform,
            find=self.sandboxes.find,
            verify=self.evidence.verify,
            sign=self.evidence.sign,
        )
        self.mount_results = MountResults(live=live, snapshots=snapshots, pool=pool, tasks=tasks)
        self.results = Results(
            state_dir,
            store=store,
            sandboxes=self.sandboxes,
            live=live,
            snapshots=snapshots,
            shelf=self.shelf,
            known=self.workspaces,
            credentials=credentials,
            audit=audit,
            clock=clock,
            tasks=tasks,
            asking=self.asking,
        )
        needs = Needs(
            (lambda: of_sandboxes(store), lambda: of_snapshots(rows), self.shelf.needs, self.workspaces.needs)
        )
        kinds = (Noun.SANDBOX, Noun.SNAPSHOT, Noun.BASE, Noun.WORKSHOP, Noun.WORKSPACE)
        nouns = (*(noun.value for noun in kinds), BESIDE, SPARE)
        self.templates, self.images = templates, ImageRoom(images, needs)
        self.garbage = Garbage(
            pool=pool,
            sweepers=(
                Unfinished(pool),
                Orphans(pool, needs, audit, nouns),
                AbandonedVessels(pool),
                Memory(pool),
                Outputs(remains, store),
            ),
            collectors=(
                OldTemplates(pool, templates, needs, store),
                UnusedImages(pool, images, needs),
                self.shelf.bases,
                self.shelf.unused,
                WorkspaceCollector(self.workspaces.evictions, pool, audit),
                Packages(state_dir / PACKAGES),
            ),
        )
        self.storage = Storage(
            state_dir,
            pool=pool,
            needs=needs,
            store=store,
            whole=(lambda: of_running(store), lambda: of_snapshots(rows, whole=True), self.workspaces.whole),
            garbage=self.garbage,
            nouns=nouns,
        )
        self.recovery = Recovery(
            state_dir,
            store=store,
            lifecycle=lifecycle,
            live=live,
            remains=remains,
            backends=backends,
            audit=audit,
            tasks=tasks,
            lanes=lanes,
            snapshots=snapshots,
            disk_sleep=disk_sleep,
            evictions=self.workspaces.evictions,
            shelf=self.shelf,
        )
        self.expiry = Expiry(
            store=store,
            live=live,
            recovery=self.recovery,
            garbage=self.garbage,
            audit=audit,
            clock=clock,
            period_seconds=period_seconds,
        )

    async def resume(self) -> None:
        """Sees to the network access of sandboxes that live since before this daemon."""
        if self._doors is None:
            return
        living = [(row, row.sandbox.policy) for row in self._store.list() if row.state in LIVE and not row.asleep]
        self._doors.resume([(row, await self.policies.of(policy)) for row, policy in living if policy is not None])

    def let_go(self) -> None:
        """Of the gateway, which goes on for the sandboxes that live on."""
        if self._doors is not None:
            self._doors.aclose()
