"""Actions that take results out of a sandbox or a workspace."""

from __future__ import annotations

from .action import Action, SandboxAction

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .results import Artifact, MountDiff, Promotion, PullRequest, PushedBranch, WorkspaceDiff
    from .streams import ByteReader


class DiffMount(SandboxAction["MountDiff"], tag="mount.diff", repeatable=True):
    """Return a sandbox's changes in a copy-on-write mount, at one instant.

    `target` is optional if it has one such mount. `paths` are relative to it, and select the changes at or below them.
    """

    target: str | None = None
    paths: tuple[str, ...] = ()
    patch: bool = False


class PromoteMount(SandboxAction["Promotion"], tag="mount.promote", repeatable=True):
    """Write those changes into the host's directory.

    If one of them conflicts, it writes none.

    The daemon answers with a plan, a descriptor of the sandbox's files and a journal. The caller's process writes.
    `git` includes the files that git's own commands write in `.git`, but never its hooks and its configuration. `force`
    prefers the sandbox's version of a file that the host has changed since.
    """

    target: str | None = None
    paths: tuple[str, ...] = ()
    git: bool = False
    force: bool = False
    dry_run: bool = False


class DiffWorkspace(Action["WorkspaceDiff"], tag="workspace.diff", repeatable=True):
    """Return the workspace's changes since its first commit, with untracked files, at one instant.

    `workspace` is a workspace, or a sandbox with one. A fork has a separate copy.
    """

    workspace: str
    patch: bool = False


class PushBranch(Action["PushedBranch"], tag="workspace.branch"):
    """Push the workspace to its remote, with the caller's credential.

    Uncommitted changes become a commit with `message`. The workspace itself doesn't change. The daemon answers with a
    plan, and the caller's process pushes. `branch=None` is the branch of the last push, or `paddock/NAME`. The pushed
    history must contain the remote's commit on the branch, unless `force`. `author` is `Name <mail>`. With `epoch`, the
    push fails if another sandbox has written since.
    """

    workspace: str
    branch: str | None = None
    message: str | None = None
    author: str | None = None
    force: bool = False
    epoch: int | None = None


class OpenPullRequest(Action["PullRequest"], tag="workspace.pull_request"):
    """Open a pull request for `branch`, or for the branch of the last push.

    If there is an open one, return it.

    The caller's process sends the request to the forge. `base=None` is the branch at which the workspace began, or the
    forge's default. `forge` is github or gitea (also for Forgejo). None: ask the server.
    """

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
    """Return the content of an artifact. An attacker may have made it."""

    workspace: str
    name: str


class RemoveArtifact(Action[None], tag="artifact.remove"):
    workspace: str
    name: str
