"""Everything that can be asked of paddock.

One closed union. It is the HTTP body, the policy's subject and the audit record,
so the three can never use different words. `Action[R]` says what `perform` returns.
`sandbox` takes an id, a unique prefix of one, or a name.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from .action import Action
from .exec import ExecInfo, ExecResult, ExecSpec
from .file_actions import (
    ConnectPort,
    CopyFile,
    DownloadTree,
    FindFiles,
    GrepFiles,
    ListFiles,
    MakeDirectory,
    MoveFile,
    ReadFile,
    RemoveFile,
    SetFileAttributes,
    StatFile,
    UploadTree,
    WatchFiles,
    WriteFile,
)
from .garbage import GarbageReport
from .limits import Usage
from .reports import AuditRecord, AuditReport, Check, Diagnosis, Inspection, Process
from .repository import Acquired, Repository
from .results import Artifact, MountDiff, Promotion, PullRequest, PushedBranch, WorkspaceDiff
from .sandbox import Sandbox, SandboxSpec
from .snapshot import Snapshot
from .streams import ByteReader, ExecHandle


class CreateSandbox(Action[Sandbox], frozen=True, tag="sandbox.create"):
    """The same `idempotency_key` from the same principal returns the sandbox that the first call made."""

    spec: SandboxSpec = SandboxSpec()
    idempotency_key: str | None = None


class GetSandbox(Action[Sandbox], frozen=True, tag="sandbox.get"):
    sandbox: str


class ListSandboxes(Action[tuple[Sandbox, ...]], frozen=True, tag="sandbox.list"):
    ended: bool = False


class ExtendSandbox(Action[Sandbox], frozen=True, tag="sandbox.extend"):
    """The sandbox dies `ttl_seconds` from now."""

    sandbox: str
    ttl_seconds: float


class KillSandbox(Action[Sandbox], frozen=True, tag="sandbox.kill"):
    """Final, and unconditional. Killing what is dead is not an error."""

    sandbox: str


class GetUsage(Action[Usage], frozen=True, tag="sandbox.usage"):
    sandbox: str


class InspectSandbox(Action[Inspection], frozen=True, tag="sandbox.inspect"):
    """All that is known, also of one that has ended."""

    sandbox: str


class ListProcesses(Action[tuple[Process, ...]], frozen=True, tag="sandbox.processes"):
    """Asked of the kernel, outside: nothing inside can hide or lie."""

    sandbox: str


class CreateSnapshot(Action[Snapshot], frozen=True, tag="snapshot.create"):
    """Of a running sandbox, at one instant; it goes on."""

    sandbox: str
    name: str | None = None


class ListSnapshots(Action[tuple[Snapshot, ...]], frozen=True, tag="snapshot.list"):
    """Oldest first; with `sandbox`, only those of that one."""

    sandbox: str | None = None


class DeleteSnapshot(Action[None], frozen=True, tag="snapshot.delete"):
    """By id, unique prefix of one, or name."""

    snapshot: str


class ForkSandbox(Action[tuple[Sandbox, ...]], frozen=True, tag="sandbox.fork"):
    """`count` new sandboxes with the files of a running one at one instant. All or none.

    They have its spec but its name; `ttl_seconds=None` is the parent's, counted anew.
    """

    sandbox: str
    count: int = 1
    ttl_seconds: float | None = None


class RollbackSandbox(Action[Sandbox], frozen=True, tag="sandbox.rollback"):
    """Ends all its processes; the files become those of the snapshot, and it runs on under its id."""

    sandbox: str
    snapshot: str


class AcquireRepository(Action[Acquired], frozen=True, tag="repository.acquire"):
    """The commit that `ref` led to at most `max_age_seconds` ago, fetched if it is not here.

    `ref` is a branch, a tag, a full name of a ref or a full id of a commit; None: the default branch. A credential in
    `url` is used for this once, and kept nowhere."""

    url: str
    ref: str | None = None
    max_age_seconds: float = 0.0


class ListRepositories(Action[tuple[Repository, ...]], frozen=True, tag="repository.list"):
    """Public ones, and those that are one's own."""


class DeleteRepository(Action[None], frozen=True, tag="repository.delete"):
    """From the cache: by id, unique prefix of one, or URL. Refused while something needs it."""

    repository: str


class PromoteChild(Action[None], frozen=True, tag="sandbox.promote"):
    """What `child`, made by a program inside `sandbox`, has at the directory `path` replaces what is there."""

    sandbox: str
    child: str
    path: str = "/workspace"


class RunExec(Action[ExecResult], frozen=True, tag="exec.run"):
    """Start, wait, collect. `input` is written to stdin, which is then closed."""

    sandbox: str
    spec: ExecSpec
    input: bytes | None = None
    capture_bytes: int = 1 << 20
    """Bytes of each stream kept in the result: half from the start, half from the end."""


class StartExec(Action[ExecHandle], frozen=True, tag="exec.start"):
    """A background command has its output kept in the sandbox and lives on when the caller lets go."""

    sandbox: str
    spec: ExecSpec
    background: bool = False


class AttachExec(Action[ExecHandle], frozen=True, tag="exec.attach"):
    """To a background command: its output from the start, and what follows."""

    sandbox: str
    exec: str


class ListExecs(Action[tuple[ExecInfo, ...]], frozen=True, tag="exec.list"):
    sandbox: str


class ReadOutput(Action[ByteReader], frozen=True, tag="exec.output"):
    """What is kept of a command's output until now: of a background command all of it, of one that was run to its end
    what did not fit into its result. `stream` is stdout or stderr."""

    sandbox: str
    exec: str
    stream: Literal["stdout", "stderr"] = "stdout"


class SignalExec(Action[None], frozen=True, tag="exec.signal"):
    sandbox: str
    exec: str
    signal: int


class DiffMount(Action[MountDiff], frozen=True, tag="mount.diff"):
    """What a sandbox has changed in a copy-on-write mount, at one instant. `target` may be left out where it has one
    such mount. `paths` are relative to it: only what is at or below them."""

    sandbox: str
    target: str | None = None
    paths: tuple[str, ...] = ()
    patch: bool = False


class PromoteMount(Action[Promotion], frozen=True, tag="mount.promote"):
    """Takes those changes over into the host's directory, as the program that the service is part of. All or, if one
    of them has an obstacle, nothing.

    `git` takes over what git's own commands write in `.git`, too; its hooks and its configuration never are. `force`
    prefers the sandbox's where the host has changed a file since."""

    sandbox: str
    target: str | None = None
    paths: tuple[str, ...] = ()
    git: bool = False
    force: bool = False
    dry_run: bool = False


class DiffWorkspace(Action[WorkspaceDiff], frozen=True, tag="workspace.diff"):
    """What it holds that the commit it began with has not, untracked files too, at one instant.

    `workspace` is a workspace, or a sandbox with one: of a fork, its own copy is meant."""

    workspace: str
    patch: bool = False


class PushBranch(Action[PushedBranch], frozen=True, tag="workspace.branch"):
    """Pushes what it holds to its remote, by a credential of the host. What is not committed becomes a commit with
    `message`; the workspace itself stays as it is.

    `branch=None` is the one that was pushed last, or `paddock/NAME`. What the remote has at it must be among what is
    pushed, unless `force`. `author` is `Name <mail>`. With `epoch` it is refused when that has passed."""

    workspace: str
    branch: str | None = None
    message: str | None = None
    author: str | None = None
    force: bool = False
    epoch: int | None = None


class OpenPullRequest(Action[PullRequest], frozen=True, tag="workspace.pull_request"):
    """For the branch that was pushed last, or `branch`; the open one, if there is one.

    `base=None` is the branch that the workspace was opened on, or the forge's default. `forge` is github or gitea
    (Forgejo's, too); None: it is asked."""

    workspace: str
    title: str
    body: str = ""
    branch: str | None = None
    base: str | None = None
    draft: bool = False
    forge: str | None = None


class AddArtifact(Action[Artifact], frozen=True, tag="artifact.add"):
    """Keeps a file or a directory (as a tar archive) of a workspace or a sandbox on the host, by name.

    `name=None` is the last part of `path`."""

    workspace: str
    path: str
    name: str | None = None


class ListArtifacts(Action[tuple[Artifact, ...]], frozen=True, tag="artifact.list"):
    """Oldest first. `workspace` is an id, or the name that it had."""

    workspace: str | None = None


class GetArtifact(Action[ByteReader], frozen=True, tag="artifact.get"):
    """Its content, which an attacker may have made."""

    workspace: str
    name: str


class RemoveArtifact(Action[None], frozen=True, tag="artifact.remove"):
    workspace: str
    name: str


class ListAudit(Action[tuple[AuditRecord, ...]], frozen=True, tag="audit.list"):
    """The last `limit` records that fit, oldest first. `sandbox` is an id, `tag` that of an action or its beginning
    (`exec`), `trouble` leaves what was denied or failed, `since` and `until` are seconds since the epoch."""

    sandbox: str | None = None
    tag: str | None = None
    principal: str | None = None
    trouble: bool = False
    since: float | None = None
    until: float | None = None
    ref: str | None = None
    limit: int = 1000


class VerifyAudit(Action[AuditReport], frozen=True, tag="audit.verify"):
    pass


class Diagnose(Action[Diagnosis], frozen=True, tag="doctor"):
    pass


class CollectGarbage(Action[GarbageReport], frozen=True, tag="garbage.collect"):
    """Deletes what nobody needs, and, while the pool is too full, what can be had again. Never what something that
    lives needs. `dry_run` only says what would go, and why."""

    dry_run: bool = False


class CheckStorage(Action[tuple[Check, ...]], frozen=True, tag="storage.check"):
    """Looks through the pool: what is on the disk against what is recorded, and what the file system says of itself.

    `scrub` reads all of it; None: if that is quick. `repair` first takes away what is half made or half deleted."""

    scrub: bool | None = None
    repair: bool = False


AnyAction: TypeAlias = (
    CreateSandbox
    | GetSandbox
    | ListSandboxes
    | ExtendSandbox
    | KillSandbox
    | GetUsage
    | InspectSandbox
    | ListProcesses
    | CreateSnapshot
    | ListSnapshots
    | DeleteSnapshot
    | ForkSandbox
    | RollbackSandbox
    | PromoteChild
    | AcquireRepository
    | ListRepositories
    | DeleteRepository
    | RunExec
    | StartExec
    | AttachExec
    | ListExecs
    | ReadOutput
    | SignalExec
    | ReadFile
    | WriteFile
    | StatFile
    | ListFiles
    | MakeDirectory
    | MoveFile
    | CopyFile
    | RemoveFile
    | SetFileAttributes
    | FindFiles
    | GrepFiles
    | WatchFiles
    | UploadTree
    | DownloadTree
    | ConnectPort
    | DiffMount
    | PromoteMount
    | DiffWorkspace
    | PushBranch
    | OpenPullRequest
    | AddArtifact
    | ListArtifacts
    | GetArtifact
    | RemoveArtifact
    | ListAudit
    | VerifyAudit
    | Diagnose
    | CollectGarbage
    | CheckStorage
)
