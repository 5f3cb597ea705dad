"""What has become of a directory in a sandbox, and what of it was taken over on the host."""

from __future__ import annotations

from enum import StrEnum

from .files import FileKind
from .value import Moment, Value


class ChangeKind(StrEnum):
    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    RENAMED = "renamed"


class Change(Value):
    """One path of a difference, relative to its directory; bytes that are not UTF-8 appear as surrogate escapes.

    `file` is what is there now, of a deleted one what was there. Modes hold the permission bits; `mode` is None of
    what was deleted, `old_mode` of what is new. Lines are counted in texts; None: not a text, or not asked for.
    """

    path: str
    kind: ChangeKind
    file: FileKind
    renamed_from: str | None = None
    old_mode: int | None = None
    mode: int | None = None
    size_bytes: int = 0
    insertions: int | None = None
    deletions: int | None = None
    obstacle: str | None = None
    """Why `promote` does not take it over as things are."""


class MountDiff(Value):
    """What a sandbox has changed in its copy-on-write mount `target` of the host's directory `source`, by path.

    `patch` is what `git apply` takes, where it was asked for. Empty directories are in `changes` only.
    """

    sandbox: str
    target: str
    source: str
    changes: tuple[Change, ...]
    patch: bytes | None = None


class Promotion(Value):
    """`applied` was taken over, or would be by the same call without `dry_run`. `left_out` are changes in `.git`."""

    sandbox: str
    target: str
    source: str
    applied: tuple[Change, ...]
    left_out: tuple[Change, ...] = ()
    dry_run: bool = False


class PlannedNode(Value):
    """What is, or is to be, at one path. `target` is a symbolic link's. `identity` (inode, time of change, size) is the
    same as long as nobody has written to it or replaced it."""

    kind: FileKind
    mode: int = 0
    uid: int = 0
    gid: int = 0
    identity: tuple[int, ...] = ()
    target: str | None = None


class PlannedChange(Value):
    """`old` is what the host has at `path`, `new` what the sandbox has; one of them at least."""

    path: str
    old: PlannedNode | None = None
    new: PlannedNode | None = None


class PromotionPlan(Value):
    """What the caller's process writes into `source`, which is the directory with this device and inode."""

    source: str
    directory: tuple[int, ...]
    changes: tuple[PlannedChange, ...]


class WorkspaceDiff(Value):
    """What a workspace, or a sandbox's copy of one, holds that the commit it began with has not, by path.

    Of files that git neither knows nor ignores too. `patch` is what `git apply` takes, where it was asked for.
    """

    workspace: str
    commit: str
    changes: tuple[Change, ...]
    patch: bytes | None = None


class PushedBranch(Value):
    """`commit` is at `ref` of `repository`. `previous` was there before; None: the branch is new. `pushed` is False if
    it was there already."""

    workspace: str
    repository: str
    ref: str
    commit: str
    previous: str | None = None
    pushed: bool = True

    @property
    def branch(self) -> str:
        return self.ref.removeprefix("refs/heads/")


class PullRequest(Value):
    """An open one on a forge. `created` is False if it was there already."""

    number: int
    url: str
    title: str
    branch: str
    base: str
    commit: str | None = None
    created: bool = True


class PushPlan(Value):
    """What the caller's process pushes: `commit` of a repository of the state directory, which borrows the objects of
    `lender`, to `ref` of `url`, if that is at `expect`. None: if it isn't there."""

    repository: str
    url: str
    ref: str
    commit: str
    expect: str | None = None
    lender: str | None = None


class PullRequestPlan(Value):
    """What the caller's process asks the forge of `url` for. `base=None` is the forge's default branch, and
    `forge=None` the kind that it says it is."""

    url: str
    branch: str
    title: str
    body: str = ""
    base: str | None = None
    draft: bool = False
    forge: str | None = None


class Published(Value):
    """What the caller's process says of a plan that it has carried out. `error` is an error as the wire has it."""

    error: str | None = None
    pull_request: PullRequest | None = None


class Artifact(Value):
    """What was taken out of a workspace, or out of a sandbox that has none, and is kept on the host.

    A directory is kept as a tar archive (`tree`). `digest` is the SHA-256 of the content.
    """

    of: str
    name: str
    path: str
    digest: str
    size_bytes: int
    tree: bool
    created_at: float
    created = Moment("created_at")
