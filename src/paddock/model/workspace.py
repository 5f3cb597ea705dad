"""The durable state of a task: files that outlive every sandbox over them."""

from __future__ import annotations

from enum import StrEnum

from .action import Action
from .ids import SandboxId, WorkspaceId
from .value import Moment, Value


class WorkspaceState(StrEnum):
    """EVICTED: its files are kept in an archive, not in the pool; to use it lays them out again."""

    MAKING = "making"
    READY = "ready"
    EVICTING = "evicting"
    EVICTED = "evicted"
    RESTORING = "restoring"
    DELETING = "deleting"


class Workspace(Value):
    """`name` is the task's. Times are seconds since the epoch.

    `commit` is where it began, on `branch` of `repository`; `observed_at` is when the repository was seen to have it
    there. All are None where there is no repository. `sandbox` is the living one that may write, `epoch` how many had
    that right until now. `pinned_until`: not evicted before. `submodules`: they were asked for; if not, `unfetched` is
    how many of the repository's own were left empty.
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
    created = Moment("created_at")
    used = Moment("used_at")


class WorkspaceStatus(Value):
    """What a workspace holds that is nowhere else, computed at this moment, never remembered.

    Paths and names come from inside: an attacker may have chosen them.
    """

    workspace: Workspace
    head: str | None = None
    """The commit that is checked out."""
    on: str | None = None
    """The branch that is checked out; None: none is."""
    modified: int = 0
    """Files that differ from `head`. Without a repository: 0."""
    untracked: int = 0
    """Files that git neither knows nor ignores. Without a repository: all."""
    ahead: int = 0
    """Commits that the repository was never seen to have."""
    stashed: int = 0
    paths: tuple[str, ...] = ()
    """The first `MOST_NAMES` of those modified or untracked, as `git status --short` writes them."""

    unreadable: str | None = None
    """Why none of this could be made out: its `.git` is broken, by accident or by intent."""

    @property
    def clean(self) -> bool:
        """Nothing would be lost with it."""
        return not (self.modified or self.untracked or self.ahead or self.stashed or self.unreadable)

    @property
    def only_here(self) -> str:
        """The same in words."""
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
    """The workspace of the task `name`: the one there is, with its files laid out, or a new one.

    With `url` a new one is a checkout of that repository, as it was seen at most `max_age_seconds` ago: of `branch`
    (None: the default one); with `ref` (a branch, tag or commit) it begins there, and `branch` may be new. With
    `submodules` its submodules are fetched too: the repository names their addresses. Without `url` it is empty. One
    that is there keeps what it has; asked for with another url or branch, or with submodules it lacks, it is refused.
    """

    name: str
    url: str | None = None
    branch: str | None = None
    ref: str | None = None
    max_age_seconds: float = 60.0
    disk_mib: int | None = None
    """None: as the one there is, or 10 GiB."""
    submodules: bool = False


class GetWorkspace(Action[Workspace], tag="workspace.get", repeatable=True):
    """By id, unique prefix of one, or name: so with all that follow."""

    workspace: str


class ListWorkspaces(Action[tuple[Workspace, ...]], tag="workspace.list", repeatable=True):
    pass


class InspectWorkspace(Action[WorkspaceStatus], tag="workspace.status", repeatable=True):
    """What it holds that is nowhere else: computed now, in a sandbox made for that. Of one that was evicted: as it was
    then, for nothing can have changed since."""

    workspace: str


class PinWorkspace(Action[Workspace], tag="workspace.pin"):
    """Not evicted for `seconds` from now; 0: it may be."""

    workspace: str
    seconds: float


class DeleteWorkspace(Action[None], tag="workspace.delete"):
    """With all its files. Refused while a sandbox has it; and, without `discard`, while it holds anything that is
    nowhere else. `epoch`: refused too if others have had it since."""

    workspace: str
    discard: bool = False
    epoch: int | None = None
