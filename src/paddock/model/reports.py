"""What is told of a machine, of a sandbox, and of what was done."""

from __future__ import annotations

from typing import Any

import msgspec

from .limits import Limit, Usage
from .sandbox import Sandbox


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


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process inside, as the kernel shows it outside. Only `name` and `argv` are its own words.

    `pid` and `parent` are numbers inside (0: its parent is outside), `uid` is one inside. `state` is the kernel's
    letter: R runs, S sleeps, D waits for a device, T is stopped, Z has ended. What is no UTF-8 stands as escapes.
    """

    pid: int
    parent: int
    uid: int
    name: str
    argv: tuple[str, ...]
    state: str
    threads: int
    started_at: float
    cpu_seconds: float
    memory_bytes: int


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a sandbox. Of one that has ended: what the records say."""

    sandbox: Sandbox
    usage: Usage | None = None
    enforced: tuple[Limit, ...] = ()
    """Ceilings that hold here and are reported when they strike."""
    posture: tuple[Check, ...] = ()
    """What the kernel says of its walls at this moment, read outside."""


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One action with its decision and its outcome, or one event. Times are seconds since the epoch.

    `ref` names it: segment and number. `ok` is None while there is no outcome.
    """

    ref: str
    at: float
    kind: str
    action: str
    principal: str | None = None
    allowed: bool | None = None
    rule: str | None = None
    reason: str | None = None
    sandbox: str | None = None
    """Its id if that came to be known, else what was asked for."""
    detail: dict[str, Any] = {}
    ended_at: float | None = None
    ok: bool | None = None
    error: str | None = None
    message: str | None = None
    result: dict[str, Any] = {}


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """`ok` is False from the first broken link on; `problem` names segment, line and cause."""

    ok: bool
    segments: int
    records: int
    head: str
    problem: str | None = None
