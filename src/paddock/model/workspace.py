"""The durable state of a task: files that outlive every sandbox over them."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from .ids import SandboxId, WorkspaceId


class WorkspaceState(StrEnum):
    """EVICTED: its files are kept in an archive, not in the pool; to use it lays them out again."""

    MAKING = "making"
    READY = "ready"
    EVICTING = "evicting"
    EVICTED = "evicted"
    RESTORING = "restoring"
    DELETING = "deleting"


class Workspace(msgspec.Struct, frozen=True, kw_only=True):
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


class WorkspaceStatus(msgspec.Struct, frozen=True, kw_only=True):
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
