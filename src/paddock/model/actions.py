"""All actions that paddock accepts.

An action is at once the HTTP body, the subject of the policy and the audit record.
`Action[R]` names the result of `perform`. `sandbox` takes an id, a unique prefix of one, or a name.
"""

from __future__ import annotations

from .action import Action, SandboxAction
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


class GetSandbox(SandboxAction["Sandbox"], tag="sandbox.get", repeatable=True): ...


class ListSandboxes(Action["tuple[Sandbox, ...]"], tag="sandbox.list", repeatable=True):
    ended: bool = False


class ExtendSandbox(SandboxAction["Sandbox"], tag="sandbox.extend", repeatable=True):
    """The sandbox dies `ttl_seconds` from now."""

    ttl_seconds: float


class KillSandbox(SandboxAction["Sandbox"], tag="sandbox.kill", repeatable=True):
    """End a sandbox, finally and unconditionally. Killing a dead one isn't an error."""


class PauseSandbox(SandboxAction["Sandbox"], tag="sandbox.pause", repeatable=True):
    """Pause all processes of a sandbox, and its TTL, until a caller resumes or uses it.

    Idempotent.

    Raises InvalidStateError while commands run in it, in the background too. With `force` it pauses them as well.
    `to_disk` writes its memory to disk and frees it, if its level can. A caller with an open command or stream loses
    the connection. The command goes on when the sandbox resumes.
    """

    to_disk: bool = False
    force: bool = False


class ResumeSandbox(SandboxAction["Sandbox"], tag="sandbox.resume", repeatable=True):
    """Idempotent."""


class GetUsage(SandboxAction["Usage"], tag="sandbox.usage", repeatable=True): ...


class InspectSandbox(SandboxAction["Inspection"], tag="sandbox.inspect", repeatable=True):
    """Return all details of a sandbox, also of an ended one."""


class ListProcesses(SandboxAction["tuple[Process, ...]"], tag="sandbox.processes", repeatable=True):
    """Return the processes of a sandbox, as the host's kernel reports them: a process inside can't hide."""


class CreateSnapshot(SandboxAction["Snapshot"], tag="snapshot.create"):
    """Take a snapshot of a running sandbox at one instant. The sandbox continues. Sandboxes from it have more variables
    `env`, and start in `workdir` as `user`. With `takes_name`, another snapshot of that name stays without one."""

    name: str | None = None
    takes_name: bool = False
    env: dict[str, str] = {}
    workdir: str | None = None
    user: str | None = None


class ListSnapshots(Action["tuple[Snapshot, ...]"], tag="snapshot.list", repeatable=True):
    """Return the snapshots, oldest first. With `sandbox`, only the ones of that sandbox."""

    sandbox: str | None = None


class DeleteSnapshot(Action[None], tag="snapshot.delete"):
    """Delete a snapshot, by id, a unique prefix of one, or name."""

    snapshot: str


class ForkSandbox(SandboxAction["tuple[Sandbox, ...]"], tag="sandbox.fork"):
    """Make `count` new sandboxes with the files of a running one at one instant, or none.

    They have its spec without its name. `ttl_seconds=None` is the parent's TTL, from the start. `persistent=None` is
    the parent's setting.
    """

    count: int = 1
    ttl_seconds: float | None = None
    persistent: bool | None = None


class RollbackSandbox(SandboxAction["Sandbox"], tag="sandbox.rollback"):
    """End all processes of a sandbox, and restore the files of the snapshot. It continues under its id."""

    snapshot: str


class PromoteChild(SandboxAction[None], tag="sandbox.promote"):
    """Replace a directory of `sandbox` by the one of its child sandbox `child`, at the same `path`."""

    child: str
    path: str = "/workspace"


class RunExec(SandboxAction["ExecResult"], tag="exec.run"):
    """Start a command, wait for it, and collect its output. `input` goes to its stdin, which then ends."""

    spec: ExecSpec
    input: bytes | None = None
    capture_bytes: int = 1 << 20
    """Bytes of each stream kept in the result: half from the start, half from the end."""
    expect_revision: str | None = None
    """Raise InvalidStateError, and run nothing, if the sandbox has another policy."""
    id: str | None = None
    """The command's id. None: paddock makes one."""


class StartExec(SandboxAction["ExecHandle"], tag="exec.start"):
    """A background command has its output kept in the sandbox and lives on when the caller lets go."""

    spec: ExecSpec
    background: bool = False
    expect_revision: str | None = None
    id: str | None = None
    """The command's, as of `exec.run`."""


class AttachExec(SandboxAction["ExecHandle"], tag="exec.attach", repeatable=True):
    """Connect to a running command.

    For a background command, the output begins at the start. For a foreground command whose daemon has ended, the
    streams continue where they stopped.
    """

    exec: str


class ListExecs(SandboxAction["tuple[ExecInfo, ...]"], tag="exec.list", repeatable=True): ...


class ReadOutput(SandboxAction["ByteReader"], tag="exec.output", repeatable=True):
    """Return the kept output of a command so far.

    That is all output of a background command. For a completed `run` it is the output that didn't fit into the result.
    `stream` is stdout or stderr.
    """

    exec: str
    stream: Literal["stdout", "stderr"] = "stdout"


class SignalExec(SandboxAction[None], tag="exec.signal"):
    exec: str
    signal: int


class ListAudit(Action["tuple[AuditRecord, ...]"], tag="audit.list", repeatable=True):
    """Return the last `limit` matching records, oldest first.

    `sandbox` is an id. `tag` is the tag of an action or its beginning (`exec`). `trouble` selects denied and failed
    actions. `since` and `until` are seconds since the epoch. Only the state directory's owner sees the records of other
    principals.
    """

    sandbox: str | None = None
    tag: str | None = None
    principal: str | None = None
    trouble: bool = False
    since: float | None = None
    until: float | None = None
    ref: str | None = None
    limit: int = 1000


class StreamAudit(Action["ByteReader"], tag="audit.stream", repeatable=True):
    """Return the log itself as lines of JSON, for the state directory's owner.

    Records are `{"segment":…,"record":{…}}`, byte for byte as `verify` checks them. Signed heads are `{"head":{…}}`.
    The last line is `{"cursor":…}`, from which a later call continues.

    `tag` is the tag of an action, its beginning, or one of decision, outcome and event. `last` selects only the last so
    many records. With `follow` the stream doesn't end: new records come in order of time, without heads and cursor.
    """

    sandbox: str | None = None
    tag: str | None = None
    since: float | None = None
    last: int | None = None
    follow: bool = False
    cursor: str | None = None


class VerifyAudit(Action["AuditReport"], tag="audit.verify", repeatable=True):
    pass


class GetAuditKey(Action["AuditKey"], tag="audit.key", repeatable=True):
    """Return the public key that verifies the heads of the log. paddock makes a key if there is none yet."""


class GetAuditStatement(SandboxAction["AuditStatement"], tag="audit.statement", repeatable=True):
    """Return a signed statement about a sandbox's session, from its records.

    It works for ended sandboxes too.

    It names the results (commits, artifacts, changed files), the policies, the materials, and the signed head that
    vouches for the records.
    """


class Diagnose(Action["Diagnosis"], tag="doctor", repeatable=True):
    """Describe this machine. `run` also makes a sandbox of each level that calls itself available, or of those in
    `levels`, runs `true` in it and ends it: a first microVM can take a minute. That is for the owner alone."""

    run: bool = False
    levels: tuple[Level, ...] = ()


class CollectGarbage(Action["GarbageReport"], tag="garbage.collect"):
    """Delete unneeded trees and files, and, while the pool is too full, ones that paddock can fetch again.

    It never deletes anything that a living object needs. `dry_run` only reports the candidates, and the reasons.
    """

    dry_run: bool = False


class CheckStorage(Action["tuple[Check, ...]"], tag="storage.check", repeatable=True):
    """Check the pool: compare the disk with the records, and ask the file system for its own errors.

    `scrub` reads all data. None: only if that is quick. `repair` first removes the remains of interrupted creations and
    deletions.
    """

    scrub: bool | None = None
    repair: bool = False
