"""What every action does: the one place where actions and those who carry them out meet."""

from __future__ import annotations

from typing import assert_never, cast

from paddock.model import (
    AcquireRepository,
    Action,
    AddArtifact,
    AnyAction,
    AttachExec,
    CheckStorage,
    CollectGarbage,
    ConnectPort,
    CopyFile,
    CreateSandbox,
    CreateSnapshot,
    DeleteRepository,
    DeleteSnapshot,
    DeleteWorkspace,
    DenyApproval,
    Diagnose,
    DiffMount,
    DiffWorkspace,
    DownloadTree,
    ExtendSandbox,
    FindFiles,
    ForkSandbox,
    GarbageReport,
    GetArtifact,
    GetAuditKey,
    GetAuditStatement,
    GetPolicy,
    GetSandbox,
    GetUsage,
    GetWorkspace,
    GrantApproval,
    GrepFiles,
    InspectSandbox,
    InspectWorkspace,
    KillSandbox,
    ListApprovals,
    ListArtifacts,
    ListAudit,
    ListExecs,
    ListFiles,
    ListImages,
    ListProcesses,
    ListRepositories,
    ListSandboxes,
    ListSecrets,
    ListSnapshots,
    ListTemplates,
    ListWorkspaces,
    MakeDirectory,
    MoveFile,
    OpenPullRequest,
    OpenWorkspace,
    PauseSandbox,
    PinWorkspace,
    PromoteChild,
    PromoteMount,
    PullImage,
    PushBranch,
    ReadFile,
    ReadOutput,
    RemoveArtifact,
    RemoveFile,
    RemoveImage,
    RemoveSecret,
    ResumeSandbox,
    RollbackSandbox,
    RotateVaultKey,
    RunExec,
    SetFileAttributes,
    SetPolicy,
    SetSecret,
    SignalExec,
    StartExec,
    StartRecording,
    StatFile,
    StreamAudit,
    TakeRecording,
    UploadTree,
    VerifyAudit,
    WatchFiles,
    WriteFile,
)

from ._gate import Entry
from ._rooms import Rooms


async def effect(rooms: Rooms, action: AnyAction, entry: Entry) -> object:
    """The union is closed, and every action of it has its case."""
    match action:
        case RunExec():
            return await rooms.execs.run(action, entry)
        case CreateSandbox():
            return await rooms.sandboxes.create(action, entry)
        case GetSandbox():
            return await rooms.sandboxes.get(action, entry)
        case ListSandboxes():
            return await rooms.sandboxes.list(action, entry)
        case ExtendSandbox():
            return await rooms.sandboxes.extend(action, entry)
        case KillSandbox():
            return await rooms.sandboxes.kill(action, entry)
        case PauseSandbox():
            return await rooms.sandboxes.pause(action, entry)
        case ResumeSandbox():
            return await rooms.sandboxes.resume(action, entry)
        case GetUsage():
            return await rooms.sandboxes.usage(action, entry)
        case InspectSandbox():
            return await rooms.sandboxes.inspect(action, entry)
        case ListProcesses():
            return await rooms.sandboxes.processes(action, entry)
        case CreateSnapshot():
            async with rooms.sandboxes.alone(action.sandbox, entry) as (row, held):
                return await rooms.snapshots.create(action, row, held, entry)
        case ListSnapshots():
            source = None if action.sandbox is None else rooms.sandboxes.find(action.sandbox, entry).id
            return rooms.snapshots.list(source, entry)
        case DeleteSnapshot():
            await rooms.asking.snapshot_deletion(action, rooms.snapshots, entry)
            return await rooms.snapshots.delete(action, entry)
        case ForkSandbox():
            return await rooms.forks.fork(action, *await rooms.sandboxes.reach(action.sandbox, entry), entry)
        case RollbackSandbox():
            return await rooms.sandboxes.rollback(action, entry)
        case DeleteWorkspace():
            await rooms.asking.workspace_deletion(action, rooms.workspaces, entry)
            return await rooms.workspaces.perform(action, entry)
        case OpenWorkspace() | GetWorkspace() | ListWorkspaces() | InspectWorkspace() | PinWorkspace():
            return await rooms.workspaces.perform(action, entry)
        case AcquireRepository() | ListRepositories() | DeleteRepository():
            return await rooms.shelf.repositories.perform(action, entry)
        case PullImage() | ListImages() | RemoveImage():
            return await rooms.images.perform(action, entry)
        case ListTemplates():
            return tuple(sorted(rooms.templates.names()))
        case PromoteChild():
            return await rooms.promotion.promote(action, entry)
        case StartExec():
            return await rooms.execs.start(action, entry)
        case AttachExec():
            return await rooms.execs.attach(action, entry)
        case ListExecs():
            return await rooms.execs.list(action, entry)
        case ReadOutput():
            return await rooms.execs.output(action, entry)
        case SignalExec():
            return await rooms.execs.signal(action, entry)
        case ReadFile() | DownloadTree():
            return await rooms.files.read(action, entry)
        case WriteFile() | UploadTree():
            return await rooms.files.write(action, entry)
        case WatchFiles():
            return await rooms.files.watch(action, entry)
        case ConnectPort():
            return await rooms.files.connect(action, entry)
        case (
            StatFile()
            | ListFiles()
            | MakeDirectory()
            | MoveFile()
            | CopyFile()
            | RemoveFile()
            | SetFileAttributes()
            | FindFiles()
            | GrepFiles()
        ):
            return await rooms.files.value(cast("Action[object]", action), entry)
        case DiffMount():
            return await rooms.mount_results.diff(action, *await rooms.sandboxes.reach(action.sandbox, entry), entry)
        case PromoteMount():
            return await rooms.mount_results.promote(action, *await rooms.sandboxes.reach(action.sandbox, entry), entry)
        case DiffWorkspace():
            return await rooms.results.workspaces.diff(action, entry)
        case PushBranch():
            return await rooms.results.workspaces.push(action, entry)
        case OpenPullRequest():
            return await rooms.results.workspaces.pull_request(action, entry)
        case AddArtifact():
            return await rooms.results.artifacts.add(action, entry)
        case ListArtifacts():
            return rooms.results.artifacts.list(action, entry)
        case GetArtifact():
            return await rooms.results.artifacts.get(action, entry)
        case RemoveArtifact():
            return await rooms.results.artifacts.remove(action, entry)
        case StartRecording() | TakeRecording():
            row, _ = await rooms.sandboxes.reach(action.sandbox, entry)
            return await rooms.recordings.perform(action, row, entry)
        case SetPolicy():
            async with rooms.sandboxes.use(action.sandbox, entry, awake=False) as (row, _):
                return await rooms.policies.set(action, row, entry)
        case GetPolicy():
            return await rooms.policies.get(action, rooms.sandboxes.find(action.sandbox, entry), entry)
        case SetSecret() | RemoveSecret() | ListSecrets() | RotateVaultKey():
            return await rooms.secrets.perform(action, entry)
        case ListApprovals() | GrantApproval() | DenyApproval():
            return await rooms.approvals.perform(action, entry)
        case ListAudit():
            return await rooms.reports.audit(action, entry)
        case StreamAudit():
            return await rooms.reports.stream(action, entry)
        case VerifyAudit():
            return await rooms.evidence.verify()
        case GetAuditKey():
            return await rooms.evidence.key()
        case GetAuditStatement():
            return await rooms.evidence.statement(rooms.sandboxes.find(action.sandbox, entry), entry)
        case Diagnose():
            return await rooms.reports.diagnose(action, entry)
        case CollectGarbage():
            return await _collect(rooms, action, entry)
        case CheckStorage():
            return await rooms.storage.check(action)
        case _:
            assert_never(action)


async def _collect(rooms: Rooms, action: CollectGarbage, entry: Entry) -> GarbageReport:
    report = await rooms.garbage.collect(dry_run=action.dry_run)
    gone = [item.what for item in report.items if item.kept_because is None]
    entry.done({"dry_run": report.dry_run, "number": len(gone), "gone": gone[:100]})
    return report
