"""A sandbox's files at one instant."""

from __future__ import annotations

from .value import DatetimeField, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .ids import SandboxId, SnapshotId
    from .sandbox import SandboxSpec


class Snapshot(Value):
    """A snapshot.

    It exists until a caller deletes it, even after the end of the sandbox `source`.

    `spec` is the source's, and `created_at` seconds since the epoch.
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
    created = DatetimeField("created_at")
