"""Describe sandboxes before they are made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from paddock.backends.base import Backend, SandboxPlan
from paddock.daemon.store.database import Row
from paddock.model import Principal, Template, replace

from .nested import environment

if TYPE_CHECKING:
    from paddock.policy.network import Snapshot


class CreateRequest(msgspec.Struct, frozen=True):
    """The common parts of the sandboxes that one request makes. Their rows say `creating`."""

    template: Template
    backend: Backend
    policy: Snapshot | None = None
    protect: tuple[str, ...] = ()
    """Paths that stay as they are: of a fork those of its parent, with or without the policy."""
    inherits: bool = False
    """The policy, and the variables by which its secrets are read, came from what it is made of."""

    def plan(self, row: Row, retention_seconds: float) -> SandboxPlan:
        spec = row.sandbox.spec
        return SandboxPlan(
            id=row.id,
            hostname=spec.name or row.id.replace("_", "-"),
            spec=replace(spec, env=environment(spec)) if spec.nested else spec,
            template=self.template,
            tree=row.id,
            deadline=row.deadline,
            instance_id=row.instance_id,
            parent=Principal(row.sandbox.owner).sandbox,
            trees=() if row.workspace is None else row.workspace.mounts(),
            exits=row.sandbox.policy is not None,
            begun=bool(spec.snapshot or row.sandbox.origin or row.instance_id),
            protect=self.protect,
            retention_seconds=retention_seconds,
        )
