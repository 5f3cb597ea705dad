"""The closed union of everything that can be asked. Its types take all of the model to import."""

from __future__ import annotations

from typing import Any, TypeAlias, get_args

from .action import Action
from .actions import (
    AttachExec,
    CheckStorage,
    CollectGarbage,
    CreateSandbox,
    CreateSnapshot,
    DeleteSnapshot,
    Diagnose,
    ExtendSandbox,
    ForkSandbox,
    GetAuditKey,
    GetAuditStatement,
    GetSandbox,
    GetUsage,
    InspectSandbox,
    KillSandbox,
    ListAudit,
    ListExecs,
    ListProcesses,
    ListSandboxes,
    ListSnapshots,
    PauseSandbox,
    PromoteChild,
    ReadOutput,
    ResumeSandbox,
    RollbackSandbox,
    RunExec,
    SignalExec,
    StartExec,
    StreamAudit,
    VerifyAudit,
)
from .approval import DenyApproval, GrantApproval, ListApprovals
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
from .image import ListImages, ListTemplates, PullImage, RemoveImage
from .policy_actions import GetPolicy, SetPolicy
from .recording import StartRecording, TakeRecording
from .repository import AcquireRepository, DeleteRepository, ListRepositories
from .result_actions import (
    AddArtifact,
    DiffMount,
    DiffWorkspace,
    GetArtifact,
    ListArtifacts,
    OpenPullRequest,
    PromoteMount,
    PushBranch,
    RemoveArtifact,
)
from .secret import ListSecrets, RemoveSecret, RotateVaultKey, SetSecret
from .workspace_actions import (
    DeleteWorkspace,
    GetWorkspace,
    InspectWorkspace,
    ListWorkspaces,
    OpenWorkspace,
    PinWorkspace,
)

AnyAction: TypeAlias = (
    CreateSandbox
    | GetSandbox
    | ListSandboxes
    | ExtendSandbox
    | KillSandbox
    | PauseSandbox
    | ResumeSandbox
    | GetUsage
    | InspectSandbox
    | ListProcesses
    | CreateSnapshot
    | ListSnapshots
    | DeleteSnapshot
    | ForkSandbox
    | RollbackSandbox
    | PromoteChild
    | OpenWorkspace
    | GetWorkspace
    | ListWorkspaces
    | InspectWorkspace
    | PinWorkspace
    | DeleteWorkspace
    | AcquireRepository
    | ListRepositories
    | DeleteRepository
    | PullImage
    | ListImages
    | RemoveImage
    | ListTemplates
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
    | SetPolicy
    | StartRecording
    | TakeRecording
    | GetPolicy
    | SetSecret
    | RemoveSecret
    | ListSecrets
    | RotateVaultKey
    | ListApprovals
    | GrantApproval
    | DenyApproval
    | ListAudit
    | StreamAudit
    | VerifyAudit
    | GetAuditKey
    | GetAuditStatement
    | Diagnose
    | CollectGarbage
    | CheckStorage
)

BY_TAG: dict[str, type[Action[Any]]] = {kind.TAG: kind for kind in get_args(AnyAction)}
