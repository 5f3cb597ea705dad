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
    async with AsyncSandbox.create(workspace=workspace.name) as sandbox:
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
        """Return the workspace of the task `name`: the one there is, or a new one.

        With `url` a new one is a checkout of `branch` of that repository, at `ref` (the tip if none is given) as it was
        seen at most `max_age_seconds` ago: `info.commit` says which commit that is, `info.observed_at` when it was
        seen. Without, it is empty. One that is there is as it was left, or InvalidStateError says what it has instead.

        `submodules=True` fetches its submodules too, from public addresses or the repository's own server. Without,
        they are left empty, `info.unfetched` counts them, and a warning says so.
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
        """By id, unique prefix of an id, or name. NotFoundError."""
        transport = transport or default_async_transport()
        return cls(await transport.perform(model.GetWorkspace(workspace=id_or_name)), transport)

    @classmethod
    async def list(cls, *, transport: AsyncTransport | None = None) -> tuple[AsyncWorkspace, ...]:
        """All, those used least recently first."""
        transport = transport or default_async_transport()
        return tuple(cls(info, transport) for info in await transport.perform(model.ListWorkspaces()))

    @property
    def info(self) -> WorkspaceInfo:
        """As the records knew it when this object was made, or at the last `refresh` or `pin`."""
        return self._info

    @property
    def id(self) -> str:
        return self._info.id

    @property
    def name(self) -> str:
        """The task's."""
        return self._info.name

    async def refresh(self) -> WorkspaceInfo:
        """Asks again what the records say; `info` follows."""
        self._info = await self._transport.perform(model.GetWorkspace(workspace=self.id))
        return self._info

    async def status(self) -> WorkspaceStatus:
        """Return what it holds that is nowhere else, computed now."""
        return await self._transport.perform(model.InspectWorkspace(workspace=self.id))

    async def diff(self, *, patch: bool = False) -> WorkspaceDiff:
        """Return what it holds that the commit it began with has not, untracked files too, at one instant. With `patch`
        the result holds what `git apply` takes. InvalidStateError: it came from no repository."""
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
        """To where it came from, by a credential of the host. What is not committed becomes a commit with `message` by
        `author` (`Name <mail>`); the workspace stays as it is.

        `branch` is the one pushed last, or `paddock/NAME`. InvalidStateError: others have pushed there, and no
        `force`; or, with `epoch`, another sandbox has had it since.
        """
        action = model.PushBranch(
            workspace=self.id, branch=branch, message=message, author=author, force=force, epoch=epoch
        )
        return await self._transport.perform(action)

    async def pull_request(
        self, title: str, *, body: str = "", branch: str | None = None, base: str | None = None, draft: bool = False
    ) -> PullRequest:
        """For the branch pushed last, or `branch`; the open one, if there is one. InvalidStateError: nothing was
        pushed."""
        action = model.OpenPullRequest(workspace=self.id, title=title, body=body, branch=branch, base=base, draft=draft)
        return await self._transport.perform(action)

    async def pin(self, seconds: float) -> None:
        """Keep it from being evicted for that many seconds; 0 lets it be."""
        self._info = await self._transport.perform(model.PinWorkspace(workspace=self.id, seconds=seconds))

    async def delete(self, *, discard: bool = False, epoch: int | None = None) -> None:
        """With all its files. InvalidStateError while a sandbox has it, and, without `discard`, while it holds what is
        nowhere else: the message says what. With `epoch`, if another sandbox has had it since."""
        await self._transport.perform(model.DeleteWorkspace(workspace=self.id, discard=discard, epoch=epoch))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.name!r} {self._info.state}>"
