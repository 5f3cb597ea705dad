"""Reports about the machine and about sandboxes."""

from __future__ import annotations

from .value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .sandbox import Limit, Sandbox, Usage


class Check(Value):
    """One line of `doctor`.

    `status` is ok, weak (works, with less than the full guarantee) or missing; `fix` is one command.

    Example:
        ```python
        for check in local().perform(Diagnose()).checks:
            print(check.area, check.name, check.status, check.fix)
        ```
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
    """The report of `paddock doctor`: this machine, its levels, and its configuration.

    Example:
        ```python
        diagnosis = local().perform(Diagnose())
        print([level.level for level in diagnosis.levels if level.status != "missing"])
        ```
    """

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
    """The public key of the audit log; `id` is the SHA-256 of its 32 bytes.

    Example:
        ```python
        key = local().perform(GetAuditKey())
        print(key.pem.splitlines()[0])  # -----BEGIN PUBLIC KEY-----
        ```
    """

    id: str
    pem: str


class AuditStatement(Value):
    """The signed summary of a sandbox's session: the fields of a DSSE envelope around an in-toto Statement.

    Example:
        ```python
        statement = local().perform(GetAuditStatement(sandbox=sandbox.id))
        print(statement.payloadType)  # application/vnd.in-toto+json
        ```
    """

    payload: str
    payloadType: str
    signatures: tuple[dict[str, str], ...]


class AuditFault(Value):
    """The first fault of an audit log.

    `segment` (or `heads`) and `line` say where, `seq` which record stands there or should. `cause` is in words.

    Example:
        ```python
        report = local().perform(VerifyAudit())
        print(report.fault)  # None
        ```
    """

    segment: str
    line: int
    seq: int
    cause: str


class AuditReport(Value):
    """The result of verifying the log.

    `signed` records are vouched for by `heads` signed heads, the last made at `signed_at`, with `keys` (SHA-256 of the
    public keys); behind those, records that were cut off at the end would not be missed. Of a `part` (of an export that
    leaves something out) what is there is checked, and `gaps` says in how many places something is not. `removed`:
    segments whose first records retention removed, and the number of the first that is there.

    Example:
        ```python
        report = local().perform(VerifyAudit())
        print(report.ok, report.problem)  # True None
        ```
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
