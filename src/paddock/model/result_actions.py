"""What lets something out of a sandbox or a workspace."""

from __future__ import annotations

from .action import Action

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .results import Artifact, MountDiff, Promotion, PullRequest, PushedBranch, WorkspaceDiff
    from .streams import ByteReader


class DiffMount(Action["MountDiff"], tag="mount.diff", repeatable=True):
    """What a sandbox has changed in a copy-on-write mount, at one instant. `target` may be left out where it has one
    such mount. `paths` are relative to it: only what is at or below them."""

    sandbox: str
    target: str | None = None
    paths: tuple[str, ...] = ()
    patch: bool = False


class PromoteMount(Action["Promotion"], tag="mount.promote", repeatable=True):
    """Takes those changes over into the host's directory. All or, if one of them has an obstacle, nothing.

    The daemon answers with a plan, a descriptor of the sandbox's files and a journal; the caller's process writes.

    `git` takes over what git's own commands write in `.git`, too; its hooks and its configuration never are. `force`
    prefers the sandbox's where the host has changed a file since."""

    sandbox: str
    target: str | None = None
    paths: tuple[str, ...] = ()
    git: bool = False
    force: bool = False
    dry_run: bool = False


class DiffWorkspace(Action["WorkspaceDiff"], tag="workspace.diff", repeatable=True):
    """What it holds that the commit it began with has not, untracked files too, at one instant.

    `workspace` is a workspace, or a sandbox with one: of a fork, its own copy is meant."""

    workspace: str
    patch: bool = False


class PushBranch(Action["PushedBranch"], tag="workspace.branch"):
    """Push the workspace to its remote, with the caller's credential. What is not committed becomes a commit with
    `message`; the workspace itself stays as it is. The daemon answers with a plan; the caller's process pushes.

    `branch=None` is the one that was pushed last, or `paddock/NAME`. What the remote has at it must be among what is
    pushed, unless `force`. `author` is `Name <mail>`. With `epoch` it is refused when that has passed."""

    workspace: str
    branch: str | None = None
    message: str | None = None
    author: str | None = None
    force: bool = False
    epoch: int | None = None


class OpenPullRequest(Action["PullRequest"], tag="workspace.pull_request"):
    """For the branch that was pushed last, or `branch`; the open one, if there is one. The caller's process asks the
    forge for it.

    `base=None` is the branch that the workspace was opened on, or the forge's default. `forge` is github or gitea
    (Forgejo's, too); None: it is asked."""

    workspace: str
    title: str
    body: str = ""
    branch: str | None = None
    base: str | None = None
    draft: bool = False
    forge: str | None = None


class AddArtifact(Action["Artifact"], tag="artifact.add"):
    """Keeps a file or a directory (as a tar archive) of a workspace or a sandbox on the host, by name.

    `name=None` is the last part of `path`."""

    workspace: str
    path: str
    name: str | None = None


class ListArtifacts(Action["tuple[Artifact, ...]"], tag="artifact.list", repeatable=True):
    """Oldest first. `workspace` is an id, or the name that it had."""

    workspace: str | None = None


class GetArtifact(Action["ByteReader"], tag="artifact.get", repeatable=True):
    """Its content, which an attacker may have made."""

    workspace: str
    name: str


class RemoveArtifact(Action[None], tag="artifact.remove"):
    workspace: str
    name: str
