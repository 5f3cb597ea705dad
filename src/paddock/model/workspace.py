"""The durable state of a task: files that outlive every sandbox over them."""

from __future__ import annotations

from enum import StrEnum

from .action import Action
from .ids import SandboxId, WorkspaceId
from .value import DatetimeField, Value


class WorkspaceState(StrEnum):
    """The state of a workspace. EVICTED: its files are in an archive, not in the pool. Its next use restores them."""

    MAKING = "making"
    READY = "ready"
    EVICTING = "evicting"
    EVICTED = "evicted"
    RESTORING = "restoring"
    DELETING = "deleting"


class Workspace(Value):
    """A workspace.

    `commit` is where it began, on `branch` of `repository`; `observed_at` is when the repository was seen to have it
    there. All are None without a repository. `sandbox` is the living one that may write, `epoch` how many had
    that right until now. `pinned_until`: not evicted before. `submodules`: they were asked for; if not, `unfetched` is
    how many of the repository's own were left empty.

    Example:
        ```python
        info = workspace.refresh()
        print(info.name, info.branch, info.state, info.disk_mib)  # … main ready 10240
        ```
    """

    id: WorkspaceId
    name: str
    owner: str
    state: WorkspaceState
    disk_mib: int
    created_at: float
    used_at: float
    repository: str | None = None
    branch: str | None = None
    commit: str | None = None
    observed_at: float | None = None
    sandbox: SandboxId | None = None
    epoch: int = 0
    pinned_until: float | None = None
    submodules: bool = False
    unfetched: int = 0
    created = DatetimeField("created_at")
    used = DatetimeField("used_at")


class WorkspaceStatus(Value):
    """The content of a workspace that exists in no other place. paddock computes it for each request.

    Paths and names come from inside: an attacker may have chosen them.

    Example:
        ```python
        status = workspace.status()
        print(status.on, status.modified, status.untracked, status.ahead)  # main 0 0 0
        ```
    """

    workspace: Workspace
    head: str | None = None
    """The current commit of the checkout."""
    on: str | None = None
    """The current branch of the checkout. None: no branch."""
    modified: int = 0
    """Files that differ from `head` and from the last push. Without a repository: 0."""
    untracked: int = 0
    """Files that git neither knows nor ignores, and that the last push lacks. Without a repository: all."""
    ahead: int = 0
    """Commits that the repository was never seen to have."""
    stashed: int = 0
    paths: tuple[str, ...] = ()
    """The first `MOST_NAMES` of those modified or untracked, as `git status --short` writes them."""

    unreadable: str | None = None
    """The reason why git can't read this: a broken `.git`, by accident or by intent."""

    @property
    def clean(self) -> bool:
        """Tell whether deleting it would lose nothing."""
        return not (self.modified or self.untracked or self.ahead or self.stashed or self.unreadable)

    @property
    def only_here(self) -> str:
        """The files and commits that exist in no other place, in words."""
        counts = (
            (self.ahead, "commit that its repository has not", "commits that its repository has not"),
            (self.modified, "modified file", "modified files"),
            (self.untracked, "untracked file", "untracked files"),
            (self.stashed, "stash", "stashes"),
        )
        words = [f"{count} {one if count == 1 else many}" for count, one, many in counts if count]
        if self.unreadable:
            words.append("what could not be made out, for its .git cannot be read")
        return ", ".join(words) or "nothing"


MOST_NAMES = 20


# Verbs. `workspace` takes an id, a unique prefix of one, or a name.


class OpenWorkspace(Action[Workspace], tag="workspace.open"):
    """Open the workspace of the task `name`: the existing one, restored if necessary, or a new one.

    With `url`, a new one is a checkout of that repository, at most `max_age_seconds` old: of `branch` (None: the
    default one). With `ref` (a branch, tag or commit) it begins there, and `branch` may be new. With `submodules`
    paddock also fetches its submodules, whose addresses the repository names. Without `url` it is empty. An existing
    one keeps its content. The request fails for another url or branch, or for submodules that it lacks.
    """

    name: str
    url: str | None = None
    branch: str | None = None
    ref: str | None = None
    max_age_seconds: float = 60.0
    disk_mib: int | None = None
    """None: as the existing one, or 10 GiB."""
    submodules: bool = False


class GetWorkspace(Action[Workspace], tag="workspace.get", repeatable=True):
    """Return a workspace, by id, a unique prefix of one, or name. All actions below accept the same."""

    workspace: str


class ListWorkspaces(Action[tuple[Workspace, ...]], tag="workspace.list", repeatable=True):
    pass


class InspectWorkspace(Action[WorkspaceStatus], tag="workspace.status", repeatable=True):
    """Return the content of a workspace that exists in no other place, computed in a sandbox for that purpose.

    For an evicted workspace it is the content at that time, because it can't have changed since.
    """

    workspace: str


class PinWorkspace(Action[Workspace], tag="workspace.pin"):
    """Keep a workspace from eviction for `seconds` from now. With 0, paddock may evict it again."""

    workspace: str
    seconds: float


class DeleteWorkspace(Action[None], tag="workspace.delete"):
    """Delete a workspace with all its files.

    It fails while a sandbox uses it.

    Without `discard` it also fails if data in the workspace exists in no other place. With `epoch`, it fails if other
    sandboxes have had the workspace since.
    """

    workspace: str
    discard: bool = False
    epoch: int | None = None
