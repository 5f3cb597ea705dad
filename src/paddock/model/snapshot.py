"""A sandbox's files at one instant."""

from __future__ import annotations

from .value import Moment, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .ids import SandboxId, SnapshotId
    from .sandbox import SandboxSpec


class Snapshot(Value):
    """It lives until it is deleted, whatever becomes of the sandbox `source`.

    `spec` is that of the source, `created_at` seconds since the epoch.
    """

    id: SnapshotId
    source: SandboxId
    spec: SandboxSpec
    template: str
    created_at: float
    name: str | None = None
    owner: str = ""
    policy: str | None = None
    """The revision that the source had then."""
    created = Moment("created_at")
