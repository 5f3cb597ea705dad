"""The durable files of a task."""

from __future__ import annotations

import logging

from paddock import model
from paddock.model import PullRequest, PushedBranch, WorkspaceDiff, WorkspaceStatus
from paddock.model import Workspace as WorkspaceInfo

from .daemon import default_async_transport
from .transport import AsyncTransport

_log = logging.getLogger("paddock")


class AsyncWorkspace:
    """The files of a task, which outlive every sandbox over them. They are at `/workspace`.

    ```python
    workspace = await AsyncWorkspace.open("T42", url="https://example.org/app.git", branch="fix")
    async with await AsyncSandbox.create(workspace=workspace.name) as sandbox:
        await sandbox.exec("git status")
    ```

    Made and found again by `open`, found by `get` and `list`.
    """

    def __init__(self, info: WorkspaceInfo, transport: AsyncTransport) -> None:
        self._info = info
        self._transport = transport

    @classmethod
    async def open(
        cls,
        name: str,
        *,
        url: str | None = None,
        branch: str | None = None,
        ref: str | None = None,
        max_age_seconds: float = 60.0,
        disk_mib: int | None = None,
        submodules: bool = False,
        transport: AsyncTransport | None = None,
    ) -> AsyncWorkspace:
        """Return the workspace of the task `name`: the existing one, or a new one.

        With `url`, a new one is a checkout of `branch` of that repository, at `ref` (default: the tip). It is at most
        `max_age_seconds` old. `info.commit` is the commit, and `info.observed_at` the time of the remote's answer.
        Without `url` it is empty. An existing one keeps its content, or InvalidStateError names the difference.
        `submodules=True` also fetches its submodules, from public addresses or the repository's own server. Without it
        they stay empty, `info.unfetched` counts them, and a warning says so.
        """
        action = model.OpenWorkspace(
            name=name,
            url=url,
            branch=branch,
            ref=ref,
            max_age_seconds=max_age_seconds,
            disk_mib=disk_mib,
            submodules=submodules,
        )
        transport = transport or default_async_transport()
        info = await transport.perform(action)
        if info.unfetched:
            _log.warning(
                "%d submodules of %s weren't fetched: submodules=True, or `paddock up --submodules`, fetches them into"
                " a new workspace",
                info.unfetched,
                info.repository,
            )
        return cls(info, transport)

    @classmethod
    async def get(cls, id_or_name: str, *, transport: AsyncTransport | None = None) -> AsyncWorkspace:
        """Return a workspace, by id, unique prefix of an id, or name. Raises NotFoundError."""
        transport = transport or default_async_transport()
        return cls(await transport.perform(model.GetWorkspace(workspace=id_or_name)), transport)

    @classmethod
    async def list(cls, *, transport: AsyncTransport | None = None) -> tuple[AsyncWorkspace, ...]:
        """Return all workspaces, the least recently used first."""
        transport = transport or default_async_transport()
        return tuple(cls(info, transport) for info in await transport.perform(model.ListWorkspaces()))

    @property
    def info(self) -> WorkspaceInfo:
        """The record at the creation of this object, or at the last `refresh` or `pin`."""
        return self._info

    @property
    def id(self) -> str:
        return self._info.id

    @property
    def name(self) -> str:
        """The task's."""
        return self._info.name

    async def refresh(self) -> WorkspaceInfo:
        """Read the records again, and update `info`."""
        self._info = await self._transport.perform(model.GetWorkspace(workspace=self.id))
        return self._info

    async def status(self) -> WorkspaceStatus:
        """Return its content that exists in no other place, computed now."""
        return await self._transport.perform(model.InspectWorkspace(workspace=self.id))

    async def diff(self, *, patch: bool = False) -> WorkspaceDiff:
        """Return its changes since its first commit, with untracked files, at one instant.

        With `patch` the result has input for `git apply`. Raises InvalidStateError if it has no repository.
        """
        return await self._transport.perform(model.DiffWorkspace(workspace=self.id, patch=patch))

    async def push(
        self,
        branch: str | None = None,
        *,
        message: str | None = None,
        author: str | None = None,
        force: bool = False,
        epoch: int | None = None,
    ) -> PushedBranch:
        """Push to its repository, with a credential of the host.

        Uncommitted changes become a commit with `message` by `author` (`Name <mail>`). The workspace doesn't change.
        `branch` is the one of the last push, or `paddock/NAME`. Raises InvalidStateError without `force` if another
        program has pushed there. With `epoch`, it raises InvalidStateError if another sandbox has written since.
        """
        action = model.PushBranch(
            workspace=self.id, branch=branch, message=message, author=author, force=force, epoch=epoch
        )
        return await self._transport.perform(action)

    async def pull_request(
        self, title: str, *, body: str = "", branch: str | None = None, base: str | None = None, draft: bool = False
    ) -> PullRequest:
        """Open a pull request for `branch`, or for the branch of the last push.

        If there is an open one, return it.

        Raises InvalidStateError before a push.
        """
        action = model.OpenPullRequest(workspace=self.id, title=title, body=body, branch=branch, base=base, draft=draft)
        return await self._transport.perform(action)

    async def pin(self, seconds: float) -> None:
        """Keep it from eviction for that many seconds. With 0, paddock may evict it again."""
        self._info = await self._transport.perform(model.PinWorkspace(workspace=self.id, seconds=seconds))

    async def delete(self, *, discard: bool = False, epoch: int | None = None) -> None:
        """Delete it with all its files.

        Raises InvalidStateError while a sandbox uses it.

        Without `discard` it also raises if data in it exists in no other place, and the message names the data. With
        `epoch`, it raises if another sandbox has had it since.
        """
        await self._transport.perform(model.DeleteWorkspace(workspace=self.id, discard=discard, epoch=epoch))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.name!r} {self._info.state}>"
