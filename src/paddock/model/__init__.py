"""The values and actions of paddock.

All of them are immutable. They import nothing else from this project.

Python imports a name on its first use, because a program that runs one command needs a tenth of them.
"""

from __future__ import annotations

TYPE_CHECKING = False  # pyright: ignore[reportConstantRedefinition]
if TYPE_CHECKING:  # `HOMES` says which names of these a program can import
    from .action import *
    from .actions import *
    from .approval import *
    from .decision import *
    from .egress import *
    from .ended import *
    from .exec import *
    from .file_actions import *
    from .files import *
    from .garbage import *
    from .ids import *
    from .image import *
    from .policy import *
    from .policy_actions import *
    from .reports import *
    from .repository import *
    from .result_actions import *
    from .results import *
    from .sandbox import *
    from .secret import *
    from .snapshot import *
    from .streams import *
    from .template import *
    from .value import *
    from .workspace import *

_NAMES = """\
action Action
actions AttachExec CheckStorage CollectGarbage CreateSandbox CreateSnapshot DeleteSnapshot Diagnose ExtendSandbox
actions ForkSandbox GetAuditKey GetAuditStatement GetSandbox GetUsage InspectSandbox KillSandbox ListAudit ListExecs
actions ListProcesses ListSandboxes ListSnapshots PauseSandbox PromoteChild ReadOutput ResumeSandbox RollbackSandbox
actions RunExec SignalExec StartExec StreamAudit VerifyAudit
approval APPROVAL_MOVES Approval ApprovalAnswer ApprovalRequest ApprovalState DenyApproval GrantApproval ListApprovals
decision Decision Principal nested_principal
egress ConnectVerdict RequestVerdict Target Tier Verdict
ended died
exec ExecInfo ExecResult ExecSpec ExitStatus Output PtySize
file_actions ConnectPort CopyFile DownloadTree FindFiles GrepFiles ListFiles MakeDirectory MoveFile ReadFile
file_actions RemoveFile SetFileAttributes StatFile UploadTree WatchFiles WriteFile
files FileChange FileInfo FileKind GrepMatch
garbage GarbageItem GarbageReport PoolSpace
ids ApprovalId BaseId ExecId IdPrefix RepositoryId SandboxId SnapshotId WorkspaceId check_name mint
image Image LOCAL_IMAGES ListImages ListTemplates PullImage RemoveImage TemplateInfo is_image
policy Allow Approve Binding Deny EgressRules GitHubApp Mock MockSource PolicyDocument Recorded SecretRule
policy SecretSource
policy_actions GetPolicy PolicyRevision Recording SetPolicy StartRecording TakeRecording
reports AuditFault AuditKey AuditRecord AuditReport AuditStatement Check Diagnosis Inspection LevelReport Process
repository AcquireRepository Acquired DeleteRepository ListRepositories Repository
result_actions AddArtifact DiffMount DiffWorkspace GetArtifact ListArtifacts OpenPullRequest PromoteMount PushBranch
result_actions RemoveArtifact
results Artifact Change ChangeKind MountDiff PlannedChange PlannedNode Promotion PromotionPlan Published PullRequest
results PullRequestPlan PushPlan PushedBranch WorkspaceDiff
sandbox LEGAL Level Limit Limits Mount MountMode Sandbox SandboxSpec State Usage
secret ListSecrets RemoveSecret RotateVaultKey Secret SecretValue SetSecret check_secret_name
snapshot Snapshot
streams ByteReader ByteStream ByteWriter ChangeStream ExecHandle
template Template User
value Value replace
workspace DeleteWorkspace GetWorkspace InspectWorkspace ListWorkspaces MOST_NAMES OpenWorkspace PinWorkspace Workspace
workspace WorkspaceState WorkspaceStatus
"""
HOMES = {name: home for home, *names in map(str.split, _NAMES.splitlines()) for name in names}
"""The module of each name."""


def __getattr__(name: str) -> object:
    home = HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(__import__(f"{__name__}.{home}", fromlist=(name,)), name)
    return value
