"""The nouns and verbs. Frozen values; imports nothing from this project.

The names are resolved on first use: a program that runs one command needs a tenth of them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .action import Action as Action
    from .actions import AttachExec as AttachExec
    from .actions import CheckStorage as CheckStorage
    from .actions import CollectGarbage as CollectGarbage
    from .actions import CreateSandbox as CreateSandbox
    from .actions import CreateSnapshot as CreateSnapshot
    from .actions import DeleteSnapshot as DeleteSnapshot
    from .actions import Diagnose as Diagnose
    from .actions import ExtendSandbox as ExtendSandbox
    from .actions import ForkSandbox as ForkSandbox
    from .actions import GetAuditKey as GetAuditKey
    from .actions import GetAuditStatement as GetAuditStatement
    from .actions import GetSandbox as GetSandbox
    from .actions import GetUsage as GetUsage
    from .actions import InspectSandbox as InspectSandbox
    from .actions import KillSandbox as KillSandbox
    from .actions import ListAudit as ListAudit
    from .actions import ListExecs as ListExecs
    from .actions import ListProcesses as ListProcesses
    from .actions import ListSandboxes as ListSandboxes
    from .actions import ListSnapshots as ListSnapshots
    from .actions import PauseSandbox as PauseSandbox
    from .actions import PromoteChild as PromoteChild
    from .actions import ReadOutput as ReadOutput
    from .actions import ResumeSandbox as ResumeSandbox
    from .actions import RollbackSandbox as RollbackSandbox
    from .actions import RunExec as RunExec
    from .actions import SignalExec as SignalExec
    from .actions import StartExec as StartExec
    from .actions import StreamAudit as StreamAudit
    from .actions import VerifyAudit as VerifyAudit
    from .approval import APPROVAL_MOVES as APPROVAL_MOVES
    from .approval import Approval as Approval
    from .approval import ApprovalAnswer as ApprovalAnswer
    from .approval import ApprovalRequest as ApprovalRequest
    from .approval import ApprovalState as ApprovalState
    from .approval import DenyApproval as DenyApproval
    from .approval import GrantApproval as GrantApproval
    from .approval import ListApprovals as ListApprovals
    from .decision import Decision as Decision
    from .decision import Principal as Principal
    from .decision import nested_principal as nested_principal
    from .egress import ConnectVerdict as ConnectVerdict
    from .egress import RequestVerdict as RequestVerdict
    from .egress import Target as Target
    from .egress import Tier as Tier
    from .egress import Verdict as Verdict
    from .exec import ExecInfo as ExecInfo
    from .exec import ExecResult as ExecResult
    from .exec import ExecSpec as ExecSpec
    from .exec import ExitStatus as ExitStatus
    from .exec import Output as Output
    from .exec import PtySize as PtySize
    from .file_actions import ConnectPort as ConnectPort
    from .file_actions import CopyFile as CopyFile
    from .file_actions import DownloadTree as DownloadTree
    from .file_actions import FindFiles as FindFiles
    from .file_actions import GrepFiles as GrepFiles
    from .file_actions import ListFiles as ListFiles
    from .file_actions import MakeDirectory as MakeDirectory
    from .file_actions import MoveFile as MoveFile
    from .file_actions import ReadFile as ReadFile
    from .file_actions import RemoveFile as RemoveFile
    from .file_actions import SetFileAttributes as SetFileAttributes
    from .file_actions import StatFile as StatFile
    from .file_actions import UploadTree as UploadTree
    from .file_actions import WatchFiles as WatchFiles
    from .file_actions import WriteFile as WriteFile
    from .files import FileChange as FileChange
    from .files import FileInfo as FileInfo
    from .files import FileKind as FileKind
    from .files import GrepMatch as GrepMatch
    from .garbage import GarbageItem as GarbageItem
    from .garbage import GarbageReport as GarbageReport
    from .garbage import PoolSpace as PoolSpace
    from .ids import ApprovalId as ApprovalId
    from .ids import BaseId as BaseId
    from .ids import ExecId as ExecId
    from .ids import Noun as Noun
    from .ids import RepositoryId as RepositoryId
    from .ids import SandboxId as SandboxId
    from .ids import SnapshotId as SnapshotId
    from .ids import WorkspaceId as WorkspaceId
    from .ids import mint as mint
    from .image import LOCAL_IMAGES as LOCAL_IMAGES
    from .image import Image as Image
    from .image import ListImages as ListImages
    from .image import ListTemplates as ListTemplates
    from .image import PullImage as PullImage
    from .image import RemoveImage as RemoveImage
    from .image import is_image as is_image
    from .policy import Allow as Allow
    from .policy import Approve as Approve
    from .policy import Binding as Binding
    from .policy import Deny as Deny
    from .policy import EgressRules as EgressRules
    from .policy import GitHubApp as GitHubApp
    from .policy import Mock as Mock
    from .policy import MockSource as MockSource
    from .policy import PolicyDocument as PolicyDocument
    from .policy import Recorded as Recorded
    from .policy import SecretRule as SecretRule
    from .policy import SecretSource as SecretSource
    from .policy_actions import GetPolicy as GetPolicy
    from .policy_actions import PolicyRevision as PolicyRevision
    from .policy_actions import Recording as Recording
    from .policy_actions import SetPolicy as SetPolicy
    from .policy_actions import StartRecording as StartRecording
    from .policy_actions import TakeRecording as TakeRecording
    from .reports import AuditFault as AuditFault
    from .reports import AuditKey as AuditKey
    from .reports import AuditRecord as AuditRecord
    from .reports import AuditReport as AuditReport
    from .reports import AuditStatement as AuditStatement
    from .reports import Check as Check
    from .reports import Diagnosis as Diagnosis
    from .reports import Inspection as Inspection
    from .reports import LevelReport as LevelReport
    from .reports import Process as Process
    from .repository import Acquired as Acquired
    from .repository import AcquireRepository as AcquireRepository
    from .repository import DeleteRepository as DeleteRepository
    from .repository import ListRepositories as ListRepositories
    from .repository import Repository as Repository
    from .result_actions import AddArtifact as AddArtifact
    from .result_actions import DiffMount as DiffMount
    from .result_actions import DiffWorkspace as DiffWorkspace
    from .result_actions import GetArtifact as GetArtifact
    from .result_actions import ListArtifacts as ListArtifacts
    from .result_actions import OpenPullRequest as OpenPullRequest
    from .result_actions import PromoteMount as PromoteMount
    from .result_actions import PushBranch as PushBranch
    from .result_actions import RemoveArtifact as RemoveArtifact
    from .results import Artifact as Artifact
    from .results import Change as Change
    from .results import ChangeKind as ChangeKind
    from .results import MountDiff as MountDiff
    from .results import PlannedChange as PlannedChange
    from .results import PlannedNode as PlannedNode
    from .results import Promotion as Promotion
    from .results import PromotionPlan as PromotionPlan
    from .results import Published as Published
    from .results import PullRequest as PullRequest
    from .results import PullRequestPlan as PullRequestPlan
    from .results import PushedBranch as PushedBranch
    from .results import PushPlan as PushPlan
    from .results import WorkspaceDiff as WorkspaceDiff
    from .sandbox import LEGAL as LEGAL
    from .sandbox import Level as Level
    from .sandbox import Limit as Limit
    from .sandbox import Limits as Limits
    from .sandbox import Mount as Mount
    from .sandbox import MountMode as MountMode
    from .sandbox import Sandbox as Sandbox
    from .sandbox import SandboxSpec as SandboxSpec
    from .sandbox import State as State
    from .sandbox import Usage as Usage
    from .secret import ListSecrets as ListSecrets
    from .secret import RemoveSecret as RemoveSecret
    from .secret import RotateVaultKey as RotateVaultKey
    from .secret import Secret as Secret
    from .secret import SecretValue as SecretValue
    from .secret import SetSecret as SetSecret
    from .snapshot import Snapshot as Snapshot
    from .streams import ByteReader as ByteReader
    from .streams import ByteStream as ByteStream
    from .streams import ByteWriter as ByteWriter
    from .streams import ChangeStream as ChangeStream
    from .streams import ExecHandle as ExecHandle
    from .template import Template as Template
    from .template import User as User
    from .value import Value as Value
    from .value import replace as replace
    from .workspace import MOST_NAMES as MOST_NAMES
    from .workspace import DeleteWorkspace as DeleteWorkspace
    from .workspace import GetWorkspace as GetWorkspace
    from .workspace import InspectWorkspace as InspectWorkspace
    from .workspace import ListWorkspaces as ListWorkspaces
    from .workspace import OpenWorkspace as OpenWorkspace
    from .workspace import PinWorkspace as PinWorkspace
    from .workspace import Workspace as Workspace
    from .workspace import WorkspaceState as WorkspaceState
    from .workspace import WorkspaceStatus as WorkspaceStatus

HOMES = {
    name: module
    for module, names in {
        "action": "Action",
        "actions": (
            "AttachExec CheckStorage CollectGarbage CreateSandbox CreateSnapshot DeleteSnapshot Diagnose "
            "ExtendSandbox ForkSandbox GetAuditKey GetAuditStatement GetSandbox GetUsage InspectSandbox "
            "KillSandbox ListAudit ListExecs ListProcesses ListSandboxes ListSnapshots PauseSandbox PromoteChild "
            "ReadOutput ResumeSandbox RollbackSandbox RunExec SignalExec StartExec StreamAudit VerifyAudit"
        ),
        "approval": (
            "APPROVAL_MOVES Approval ApprovalAnswer ApprovalRequest ApprovalState DenyApproval GrantApproval "
            "ListApprovals"
        ),
        "decision": "Decision Principal nested_principal",
        "egress": "ConnectVerdict RequestVerdict Target Tier Verdict",
        "exec": "ExecInfo ExecResult ExecSpec ExitStatus Output PtySize",
        "file_actions": (
            "ConnectPort CopyFile DownloadTree FindFiles GrepFiles ListFiles MakeDirectory MoveFile ReadFile "
            "RemoveFile SetFileAttributes StatFile UploadTree WatchFiles WriteFile"
        ),
        "files": "FileChange FileInfo FileKind GrepMatch",
        "garbage": "GarbageItem GarbageReport PoolSpace",
        "ids": "ApprovalId BaseId ExecId Noun RepositoryId SandboxId SnapshotId WorkspaceId mint",
        "image": "Image LOCAL_IMAGES ListImages ListTemplates PullImage RemoveImage is_image",
        "policy": (
            "Allow Approve Binding Deny EgressRules GitHubApp Mock MockSource PolicyDocument Recorded SecretRule "
            "SecretSource"
        ),
        "policy_actions": "GetPolicy PolicyRevision Recording SetPolicy StartRecording TakeRecording",
        "reports": (
            "AuditFault AuditKey AuditRecord AuditReport AuditStatement Check Diagnosis Inspection LevelReport Process"
        ),
        "repository": "AcquireRepository Acquired DeleteRepository ListRepositories Repository",
        "result_actions": (
            "AddArtifact DiffMount DiffWorkspace GetArtifact ListArtifacts OpenPullRequest PromoteMount "
            "PushBranch RemoveArtifact"
        ),
        "results": (
            "Artifact Change ChangeKind MountDiff PlannedChange PlannedNode Promotion PromotionPlan Published "
            "PullRequest PullRequestPlan PushPlan PushedBranch WorkspaceDiff"
        ),
        "sandbox": "LEGAL Level Limit Limits Mount MountMode Sandbox SandboxSpec State Usage",
        "secret": "ListSecrets RemoveSecret RotateVaultKey Secret SecretValue SetSecret",
        "snapshot": "Snapshot",
        "streams": "ByteReader ByteStream ByteWriter ChangeStream ExecHandle",
        "template": "Template User",
        "value": "Value replace",
        "workspace": (
            "DeleteWorkspace GetWorkspace InspectWorkspace ListWorkspaces MOST_NAMES OpenWorkspace PinWorkspace "
            "Workspace WorkspaceState WorkspaceStatus"
        ),
    }.items()
    for name in names.split()
}
"""The module of each name."""


def __getattr__(name: str) -> object:
    home = HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(__import__(f"{__name__}.{home}", fromlist=(name,)), name)
    return value
