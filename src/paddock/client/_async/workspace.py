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

    `open` creates one and finds it again. `get` and `list` find those that are there.

    Example:
        ```python
        workspace = await AsyncWorkspace.open("T42")
        async with await AsyncSandbox.create(workspace=workspace) as first:
            await first.exec("echo half done > notes")
        async with await AsyncSandbox.create(workspace=workspace) as second:
            print((await second.exec("cat notes")).stdout)  # half done
        ```
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
        """Return the workspace of the task `name`: the existing one with its files, or a new one.

        Args:
            name: The task's name, unique among your workspaces.
            url: A new one is a checkout of this repository. None: it is empty.
            branch: The branch to check out. None: the repository's default.
            ref: The commit, tag or branch to start at. None: the tip of `branch`.
            max_age_seconds: Use what paddock fetched at most so many seconds ago. `info.observed_at` says when it did,
                `info.commit` which commit it took.
            disk_mib: How much it may hold, in MiB. None: the existing one's, or 10 GiB.
            submodules: Fetch submodules too, from public addresses or the repository's own server. Without, they stay
                empty, `info.unfetched` counts them, and a warning says so.
            transport: `paddock.local_async(DIR)` is another state directory.

        Returns:
            The workspace.

        Raises:
            InvalidStateError: The existing one has another repository or branch. The message says which.
            NotFoundError: The repository, branch or commit doesn't exist.
            InvalidArgumentError: `url` isn't the address of a repository.

        Example:
            ```python
            workspace = await AsyncWorkspace.open("T43", url=url, branch="fix")
            async with await AsyncSandbox.create(workspace=workspace) as sandbox:
                print((await sandbox.exec("git branch --show-current")).stdout)  # fix
            ```
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
        """Return a workspace that is there.

        Args:
            id_or_name: Its id, a unique prefix of the id, or its name.
            transport: `paddock.local_async(DIR)` is another state directory.

        Returns:
            The workspace.

        Raises:
            NotFoundError: It doesn't exist.

        Example:
            ```python
            again = await AsyncWorkspace.get(workspace.name)
            print(again.id == workspace.id)  # True
            ```
        """
        transport = transport or default_async_transport()
        return cls(await transport.perform(model.GetWorkspace(workspace=id_or_name)), transport)

    @classmethod
    async def list(cls, *, transport: AsyncTransport | None = None) -> tuple[AsyncWorkspace, ...]:
        """List your workspaces.

        Args:
            transport: `paddock.local_async(DIR)` is another state directory.

        Returns:
            A tuple of workspaces, those used least recently first.

        Raises:
            DaemonUnavailableError: The daemon doesn't start, or doesn't answer.

        Example:
            ```python
            for one in await AsyncWorkspace.list():
                print(one.name, one.info.state, one.info.repository)
            ```
        """
        transport = transport or default_async_transport()
        return tuple(cls(info, transport) for info in await transport.perform(model.ListWorkspaces()))

    @property
    def info(self) -> WorkspaceInfo:
        """The record of `open`, or of the last `refresh` or `pin`."""
        return self._info

    @property
    def id(self) -> str:
        """The id, such as `ws_0vbrkt33nrkseq39`."""
        return self._info.id

    @property
    def name(self) -> str:
        """The task's name."""
        return self._info.name

    async def refresh(self) -> WorkspaceInfo:
        """Ask for the record again. `info` is then up to date.

        Returns:
            The record.

        Raises:
            NotFoundError: The workspace doesn't exist any more.

        Example:
            ```python
            info = await workspace.refresh()
            print(info.state, info.sandbox)  # ready None
            ```
        """
        self._info = await self._transport.perform(model.GetWorkspace(workspace=self.id))
        return self._info

    async def status(self) -> WorkspaceStatus:
        """Compute which of its files and commits exist in no other place.

        Returns:
            The counts, and the first names. `only_here` says the same in words.

        Raises:
            NotFoundError: The workspace doesn't exist any more.

        Example:
            ```python
            status = await workspace.status()
            print(status.clean, status.only_here)  # True nothing
            ```
        """
        return await self._transport.perform(model.InspectWorkspace(workspace=self.id))

    async def diff(self, *, patch: bool = False) -> WorkspaceDiff:
        """Compare its files with the commit it began with, at one instant. Untracked files count.

        Args:
            patch: Put a patch into the result, as `git apply` takes it.

        Returns:
            The changed paths, in `changes`.

        Raises:
            InvalidStateError: It came from no repository.
            NotFoundError: The workspace doesn't exist any more.

        Example:
            ```python
            diff = await workspace.diff(patch=True)
            print([change.path for change in diff.changes])  # []
            ```
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
        """Push its commits to its repository, with a credential of this machine.

        Uncommitted changes become a commit first. The workspace itself stays as it is.

        Args:
            branch: The branch there. None: the one pushed last, or `paddock/NAME`.
            message: The message of that commit.
            author: Its author, as `Name <mail>`.
            force: Replace commits that others have pushed to the branch.
            epoch: Push only if no other sandbox has had the workspace since: `info.epoch` of then.

        Returns:
            The repository, the branch and the commit.

        Raises:
            InvalidStateError: Others have pushed to the branch, `epoch` has passed, or it came from no repository.
            ApprovalNeededError: The policy of its sandbox asks a person first.
            NotFoundError: The workspace doesn't exist any more.

        Example:
            ```python
            pushed = await workspace.push("fix", message="Fix the parser")
            print(pushed.branch, pushed.commit)
            ```
        """
        action = model.PushBranch(
            workspace=self.id, branch=branch, message=message, author=author, force=force, epoch=epoch
        )
        return await self._transport.perform(action)

    async def pull_request(
        self, title: str, *, body: str = "", branch: str | None = None, base: str | None = None, draft: bool = False
    ) -> PullRequest:
        """Open a pull request for a pushed branch, or return the one that is open.

        Args:
            title: Its title.
            body: Its text, in Markdown.
            branch: The branch to merge. None: the one pushed last.
            base: The branch to merge into. None: the one that `open` checked out.
            draft: Mark it as a draft.

        Returns:
            Its number and URL.

        Raises:
            InvalidStateError: You haven't pushed, or it came from no repository.
            ApprovalNeededError: The policy of its sandbox asks a person first.
            NotFoundError: The workspace doesn't exist any more.

        Example:
            ```python
            await workspace.push("fix", message="Fix the parser")
            request = await workspace.pull_request("Fix the parser", base="main")
            print(request.number, request.url)
            ```
        """
        action = model.OpenPullRequest(workspace=self.id, title=title, body=body, branch=branch, base=base, draft=draft)
        return await self._transport.perform(action)

    async def pin(self, seconds: float) -> None:
        """Keep its files in the pool: paddock doesn't move them to an archive.

        Args:
            seconds: For how long from now, at most a year. 0 ends it.

        Raises:
            InvalidArgumentError: `seconds` isn't possible.
            NotFoundError: The workspace doesn't exist any more.

        Example:
            ```python
            await workspace.pin(3600)
            ```
        """
        self._info = await self._transport.perform(model.PinWorkspace(workspace=self.id, seconds=seconds))

    async def delete(self, *, discard: bool = False, epoch: int | None = None) -> None:
        """Delete it with all its files.

        Args:
            discard: Delete it even if files or commits exist in no other place.
            epoch: Delete it only if no other sandbox has had it since: `info.epoch` of then.

        Raises:
            InvalidStateError: A sandbox has it, `epoch` has passed, or something would vanish. The message says what.
            ApprovalNeededError: The policy of its sandbox asks a person first.
            NotFoundError: It doesn't exist any more.

        Example:
            ```python
            scratch = await AsyncWorkspace.open("scratch")
            await scratch.delete(discard=True)
            ```
        """
        await self._transport.perform(model.DeleteWorkspace(workspace=self.id, discard=discard, epoch=epoch))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.name!r} {self._info.state}>"
