"""Changes of a directory in a sandbox, and the ones transferred to the host."""

from __future__ import annotations

from enum import StrEnum

from .files import FileKind
from .value import DatetimeField, Value


class ChangeKind(StrEnum):
    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    RENAMED = "renamed"


class Change(Value):
    """One path of a difference, relative to its directory.

    Bytes that aren't UTF-8 appear as surrogate escapes.

    `file` is the present kind of file, or the former one of a deleted file. Modes are the permission bits. `mode` is
    None for a deleted file, `old_mode` for a new one. Counts of lines are for texts. None: not a text, or not
    requested.
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
    """A sandbox's changes in its copy-on-write mount `target` of the host's directory `source`, by path.

    `patch` is input for `git apply`, on request. Empty directories are in `changes` only.
    """

    sandbox: str
    target: str
    source: str
    changes: tuple[Change, ...]
    patch: bytes | None = None


class Promotion(Value):
    """The result of a promotion.

    `applied` are the changes on the host, or the ones that a call without `dry_run` would make. `left_out` are changes
    in `.git`.
    """

    sandbox: str
    target: str
    source: str
    applied: tuple[Change, ...]
    left_out: tuple[Change, ...] = ()
    dry_run: bool = False


class PlannedNode(Value):
    """The present or planned file at one path.

    `target` is the target of a symbolic link.

    `identity` (inode, time of change, size) stays the same until a program writes to the file or replaces it.
    """

    kind: FileKind
    mode: int = 0
    uid: int = 0
    gid: int = 0
    identity: tuple[int, ...] = ()
    target: str | None = None


class PlannedChange(Value):
    """A change of one path. `old` is the host's file, `new` the sandbox's. At least one of them exists."""

    path: str
    old: PlannedNode | None = None
    new: PlannedNode | None = None


class PromotionPlan(Value):
    """The changes that the caller's process writes into `source`, the directory with this device and inode."""

    source: str
    directory: tuple[int, ...]
    changes: tuple[PlannedChange, ...]


class WorkspaceDiff(Value):
    """The changes of a workspace, or of a sandbox's copy of one, since its first commit, by path.

    They include files that git neither tracks nor ignores. `patch` is input for `git apply`, on request.
    """

    workspace: str
    commit: str
    changes: tuple[Change, ...]
    patch: bytes | None = None


class PushedBranch(Value):
    """The result of a push: `commit` is at `ref` of `repository`.

    `previous` is the commit before the push. None: the branch is new. `pushed` is False if the commit was already
    there.
    """

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
    """A push by the caller's process: `commit`, from a repository of the state directory, to `ref` of `url`.

    The repository borrows the objects of `lender`. The push requires that `ref` is at `expect`. None: that it doesn't
    exist.
    """

    repository: str
    url: str
    ref: str
    commit: str
    expect: str | None = None
    lender: str | None = None


class PullRequestPlan(Value):
    """A pull request that the caller's process sends to the forge of `url`.

    `base=None` is the forge's default branch. `forge=None` asks the server for its kind.
    """

    url: str
    branch: str
    title: str
    body: str = ""
    base: str | None = None
    draft: bool = False
    forge: str | None = None


class Published(Value):
    """The caller's report about a plan that it has carried out. `error` is an error in its JSON form."""

    error: str | None = None
    pull_request: PullRequest | None = None


class Artifact(Value):
    """A file or directory copied out of a workspace, or out of a sandbox without one, and kept on the host.

    A directory becomes a tar archive (`tree`). `digest` is the SHA-256 of the content.
    """

    of: str
    name: str
    path: str
    digest: str
    size_bytes: int
    tree: bool
    created_at: float
    created = DatetimeField("created_at")
