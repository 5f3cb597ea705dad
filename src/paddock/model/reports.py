"""Reports about the machine and about sandboxes."""

from __future__ import annotations

from .value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .sandbox import Limit, Sandbox, Usage


class Check(Value):
    """One line of `doctor`.

    `status` is ok, weak (works, with less than the full guarantee) or missing. `fix` is one command.
    """

    area: str
    name: str
    status: str
    detail: str
    fix: str | None = None


class LevelReport(Value):
    """The state of one level on this machine.

    `status` is ok, weak or missing. `fix` is the one command that adds it. `seconds` is the time of one sandbox from
    its creation to the end of `true`. It is None if the report made no sandbox.
    """

    level: str
    backend: str
    status: str
    detail: str
    fix: str | None = None
    seconds: float | None = None


class Diagnosis(Value):
    checks: tuple[Check, ...]
    default_level: str
    """The default level, even if this machine doesn't have it."""
    state_dir: str
    levels: tuple[LevelReport, ...] = ()
    """Strongest first."""
    config_file: str = ""
    """The file with the owner's settings for `config`. It usually doesn't exist."""
    config: dict[str, str] = {}
    """Each key that `config.toml` may have, with the value that is in force."""


class Process(Value):
    """A process inside, as the kernel shows it on the host.

    Only `name` and `argv` come from the process itself.

    `pid` and `parent` are numbers inside (0: its parent is outside), and so is `uid`. `state` is the kernel's letter: R
    runs, S sleeps, D waits for a device, T has stopped, Z has ended. Bytes that aren't UTF-8 appear as escapes.
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


class Inspection(Value):
    """All details of a sandbox. For an ended one they come from the records."""

    sandbox: Sandbox
    usage: Usage | None = None
    enforced: tuple[Limit, ...] = ()
    """Limits that this machine enforces and reports."""
    posture: tuple[Check, ...] = ()
    """The kernel's view of the sandbox's isolation at this moment, read from outside."""


class AuditRecord(Value):
    """One action with its decision and its outcome, or one event.

    Times are seconds since the epoch.

    `ref` identifies it by segment and number. `ok` is None before there is an outcome.
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
    """Its id if the daemon resolved one, else the caller's argument."""
    detail: dict[str, Any] = {}
    ended_at: float | None = None
    ok: bool | None = None
    error: str | None = None
    message: str | None = None
    result: dict[str, Any] = {}


class AuditKey(Value):
    """The public key of the audit log. `id` is the SHA-256 of its 32 bytes."""

    id: str
    pem: str


class AuditStatement(Value):
    """A statement about a sandbox's session. The fields are the ones of a DSSE envelope around an in-toto Statement."""

    payload: str
    payloadType: str
    signatures: tuple[dict[str, str], ...]


class AuditFault(Value):
    """The first thing that is wrong: in which segment (or in `heads`), at which line, and which record stands there or
    should. `cause` is in words."""

    segment: str
    line: int
    seq: int
    cause: str


class AuditReport(Value):
    """The result of verifying the log.

    `ok` is False after a broken link. `problem` names segment, line and cause as text, and `fault` as values.

    `heads` signed heads vouch for the `signed` records. The last head is of `signed_at`, and `keys` are the SHA-256 of
    the public keys. If records after those are missing at the end, the report can't show it. For a `part` (an export
    that leaves records out) it checks the records that are there, and `gaps` counts the gaps. `removed` names the
    segments whose first records retention removed, with the number of the first that is there.
    """

    ok: bool
    segments: int
    records: int
    head: str
    problem: str | None = None
    fault: AuditFault | None = None
    signed: int = 0
    heads: int = 0
    signed_at: float | None = None
    keys: tuple[str, ...] = ()
    part: bool = False
    gaps: int = 0
    removed: dict[str, int] = {}
