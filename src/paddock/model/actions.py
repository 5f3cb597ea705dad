"""Everything that can be asked of paddock.

An action is the HTTP body, the policy's subject and the audit record,
so the three can never use different words. `Action[R]` says what `perform` returns.
`sandbox` takes an id, a unique prefix of one, or a name.
"""

from __future__ import annotations

from .action import Action
from .sandbox import SandboxSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from .exec import ExecInfo, ExecResult, ExecSpec
    from .garbage import GarbageReport
    from .reports import AuditKey, AuditRecord, AuditReport, AuditStatement, Check, Diagnosis, Inspection, Process
    from .sandbox import Level, Sandbox, Usage
    from .snapshot import Snapshot
    from .streams import ByteReader, ExecHandle


class CreateSandbox(Action["Sandbox"], tag="sandbox.create"):
    """The same `idempotency_key` from the same principal returns the sandbox that the first call made."""

    spec: SandboxSpec = SandboxSpec()
    idempotency_key: str | None = None


class GetSandbox(Action["Sandbox"], tag="sandbox.get", repeatable=True):
    sandbox: str


class ListSandboxes(Action["tuple[Sandbox, ...]"], tag="sandbox.list", repeatable=True):
    ended: bool = False


class ExtendSandbox(Action["Sandbox"], tag="sandbox.extend", repeatable=True):
    """The sandbox dies `ttl_seconds` from now."""

    sandbox: str
    ttl_seconds: float


class KillSandbox(Action["Sandbox"], tag="sandbox.kill", repeatable=True):
    """Final, and unconditional. Killing what is dead is not an error."""

    sandbox: str


class PauseSandbox(Action["Sandbox"], tag="sandbox.pause", repeatable=True):
    """All its processes stand still until it is resumed or used, and so does its TTL. Idempotent.

    InvalidStateError while commands run in it, in the background too, unless `force`: they stand still with it.
    `to_disk`: its memory is written to disk and given back, where its level can. A caller who has a command or a stream
    open loses it, and the command goes on inside when the sandbox is woken.
    """

    sandbox: str
    to_disk: bool = False
    force: bool = False


class ResumeSandbox(Action["Sandbox"], tag="sandbox.resume", repeatable=True):
    """Idempotent."""

    sandbox: str


class GetUsage(Action["Usage"], tag="sandbox.usage", repeatable=True):
    sandbox: str


class InspectSandbox(Action["Inspection"], tag="sandbox.inspect", repeatable=True):
    """All that is known, also of one that has ended."""

    sandbox: str


class ListProcesses(Action["tuple[Process, ...]"], tag="sandbox.processes", repeatable=True):
    """Asked of the kernel, outside: nothing inside can hide or lie."""

    sandbox: str


class CreateSnapshot(Action["Snapshot"], tag="snapshot.create"):
    """Of a running sandbox, at one instant; it goes on. Sandboxes from it have more variables `env`, and begin in
    `workdir` as `user`."""

    sandbox: str
    name: str | None = None
    env: dict[str, str] = {}
    workdir: str | None = None
    user: str | None = None


class ListSnapshots(Action["tuple[Snapshot, ...]"], tag="snapshot.list", repeatable=True):
    """Oldest first; with `sandbox`, only those of that one."""

    sandbox: str | None = None


class DeleteSnapshot(Action[None], tag="snapshot.delete"):
    """By id, unique prefix of one, or name."""

    snapshot: str


class ForkSandbox(Action["tuple[Sandbox, ...]"], tag="sandbox.fork"):
    """`count` new sandboxes with the files of a running one at one instant. All or none.

    They have its spec but its name; `ttl_seconds=None` is the parent's, counted anew. `persistent=None`: as the parent.
    """

    sandbox: str
    count: int = 1
    ttl_seconds: float | None = None
    persistent: bool | None = None


class RollbackSandbox(Action["Sandbox"], tag="sandbox.rollback"):
    """Ends all its processes; the files become those of the snapshot, and it runs on under its id."""

    sandbox: str
    snapshot: str


class PromoteChild(Action[None], tag="sandbox.promote"):
    """What `child`, made by a program inside `sandbox`, has at the directory `path` replaces what is there."""

    sandbox: str
    child: str
    path: str = "/workspace"


class RunExec(Action["ExecResult"], tag="exec.run"):
    """Start, wait, collect. `input` is written to stdin, which is then closed."""

    sandbox: str
    spec: ExecSpec
    input: bytes | None = None
    capture_bytes: int = 1 << 20
    """Bytes of each stream kept in the result: half from the start, half from the end."""
    expect_revision: str | None = None
    """InvalidStateError, and nothing is run, if the sandbox has another policy."""
    id: str | None = None
    """The command's. None: one is made."""


class StartExec(Action["ExecHandle"], tag="exec.start"):
    """A background command has its output kept in the sandbox and lives on when the caller lets go."""

    sandbox: str
    spec: ExecSpec
    background: bool = False
    expect_revision: str | None = None
    id: str | None = None
    """The command's, as of `exec.run`."""


class AttachExec(Action["ExecHandle"], tag="exec.attach", repeatable=True):
    """To a background command: its output from the start, and what follows. Or to one in the foreground whose daemon
    has ended: there its streams go on where they ended."""

    sandbox: str
    exec: str


class ListExecs(Action["tuple[ExecInfo, ...]"], tag="exec.list", repeatable=True):
    sandbox: str


class ReadOutput(Action["ByteReader"], tag="exec.output", repeatable=True):
    """What is kept of a command's output until now: of a background command all of it, of one that was run to its end
    what did not fit into its result. `stream` is stdout or stderr."""

    sandbox: str
    exec: str
    stream: Literal["stdout", "stderr"] = "stdout"


class SignalExec(Action[None], tag="exec.signal"):
    sandbox: str
    exec: str
    signal: int


class ListAudit(Action["tuple[AuditRecord, ...]"], tag="audit.list", repeatable=True):
    """The last `limit` records that fit, oldest first. `sandbox` is an id, `tag` that of an action or its beginning
    (`exec`), `trouble` leaves what was denied or failed, `since` and `until` are seconds since the epoch. Records of
    other principals are shown to the state directory's owner alone."""

    sandbox: str | None = None
    tag: str | None = None
    principal: str | None = None
    trouble: bool = False
    since: float | None = None
    until: float | None = None
    ref: str | None = None
    limit: int = 1000


class StreamAudit(Action["ByteReader"], tag="audit.stream", repeatable=True):
    """The log itself, as lines of JSON: `{"segment":…,"record":{…}}`, byte for byte what `verify` checks; signed heads,
    `{"head":{…}}`; last of all `{"cursor":…}`, to go on from another time. For the state directory's owner.

    `tag` is that of an action, its beginning, or one of decision, outcome and event. `last` leaves out all but the last
    so many records. With `follow` it does not end, and what comes is told by time, with neither heads nor cursor."""

    sandbox: str | None = None
    tag: str | None = None
    since: float | None = None
    last: int | None = None
    follow: bool = False
    cursor: str | None = None


class VerifyAudit(Action["AuditReport"], tag="audit.verify", repeatable=True):
    pass


class GetAuditKey(Action["AuditKey"], tag="audit.key", repeatable=True):
    """The public key that the heads of the log are signed with; it is made if there is none yet."""


class GetAuditStatement(Action["AuditStatement"], tag="audit.statement", repeatable=True):
    """What a sandbox's session was, from its records, signed: what it left (commits, artifacts, changed files), what
    policies it was held to, what it was made of, and which signed head vouches for that. Also of one that has ended."""

    sandbox: str


class Diagnose(Action["Diagnosis"], tag="doctor", repeatable=True):
    """Describe this machine. `run` also makes a sandbox of each level that calls itself available, or of those in
    `levels`, runs `true` in it and ends it: a first microVM can take a minute. That is for the owner alone."""

    run: bool = False
    levels: tuple[Level, ...] = ()


class CollectGarbage(Action["GarbageReport"], tag="garbage.collect"):
    """Deletes what nobody needs, and, while the pool is too full, what can be had again. Never what something that
    lives needs. `dry_run` only says what would go, and why."""

    dry_run: bool = False


class CheckStorage(Action["tuple[Check, ...]"], tag="storage.check", repeatable=True):
    """Looks through the pool: what is on the disk against what is recorded, and what the file system says of itself.

    `scrub` reads all of it; None: if that is quick. `repair` first takes away what is half made or half deleted."""

    scrub: bool | None = None
    repair: bool = False
