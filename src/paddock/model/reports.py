"""What `doctor` and `audit verify` say."""

from __future__ import annotations

import msgspec


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `doctor`.

    `status` is ok, weak (works, with less than the full guarantee) or missing; `fix` is one command."""

    area: str
    name: str
    status: str
    detail: str
    fix: str | None = None


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    checks: tuple[Check, ...]
    default_level: str | None
    state_dir: str


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """`ok` is False from the first broken link on; `problem` names segment, line and cause."""

    ok: bool
    segments: int
    records: int
    head: str
    problem: str | None = None
