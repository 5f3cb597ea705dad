"""What can be asked about workspaces. `workspace` takes an id, a unique prefix of one, or a name."""

from __future__ import annotations

from .action import Action
from .workspace import Workspace, WorkspaceStatus


class OpenWorkspace(Action[Workspace], frozen=True, tag="workspace.open"):
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


class GetWorkspace(Action[Workspace], frozen=True, tag="workspace.get"):
    """By id, unique prefix of one, or name: so with all that follow."""

    workspace: str


class ListWorkspaces(Action[tuple[Workspace, ...]], frozen=True, tag="workspace.list"):
    pass


class InspectWorkspace(Action[WorkspaceStatus], frozen=True, tag="workspace.status"):
    """What it holds that is nowhere else: computed now, in a sandbox made for that. Of one that was evicted: as it was
    then, for nothing can have changed since."""

    workspace: str


class PinWorkspace(Action[Workspace], frozen=True, tag="workspace.pin"):
    """Not evicted for `seconds` from now; 0: it may be."""

    workspace: str
    seconds: float


class DeleteWorkspace(Action[None], frozen=True, tag="workspace.delete"):
    """With all its files. Refused while a sandbox has it; and, without `discard`, while it holds anything that is
    nowhere else. `epoch`: refused too if others have had it since."""

    workspace: str
    discard: bool = False
    epoch: int | None = None
