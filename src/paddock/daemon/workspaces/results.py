"""The results of a workspace, or of a sandbox: its difference, a branch on its remote, a pull request."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import msgspec

from paddock import model
from paddock.daemon.access.policies import Exact, Policies
from paddock.daemon.context import Component, Context, Operation, Unknown, handles
from paddock.daemon.sandboxes.instance import RunningSandbox
from paddock.daemon.sandboxes.sandboxes import Sandboxes
from paddock.daemon.sandboxes.snapshots import Snapshots
from paddock.daemon.sandboxes.utility import READING_SECONDS, UtilitySandbox, UtilitySandboxes, git_environment
from paddock.daemon.store.database import Row
from paddock.daemon.store.results import ResultStore
from paddock.daemon.store.trees import WorkspaceTree
from paddock.daemon.tasks import in_thread
from paddock.errors import (
    ErrandFailedError,
    InvalidArgumentError,
    InvalidStateError,
    NotFoundError,
    PaddockError,
    SandboxDiedError,
)
from paddock.model import Acquired, PullRequest, PullRequestPlan, PushedBranch, PushPlan, WorkspaceDiff, codec
from paddock.model.policy import ActionKind

from . import _scripts as scripts
from .repositories import Repositories
from .workspaces import Workspaces, check_epoch, first_commit

QUARANTINE = "qu_"
_HEADS = "refs/heads/"
_RAW_BYTES = 64 << 20
_PATCH_BYTES = 64 << 20
_PACK_BYTES = 512 << 20
_AUTHOR = "paddock <paddock@localhost>"
_IDENTITY = re.compile(r"(?P<name>[^<>\n\0]{1,200}?) ?<(?P<email>[^<>\s\0]{1,200})>")
_MESSAGE_CHARS = 64 << 10


class Source(msgspec.Struct, frozen=True):
    """`running` is the sandbox that writes it, if one lives."""

    id: str
    name: str
    workspace: model.Workspace | None
    tree: WorkspaceTree | None
    """That of the workspace; of a fork, a copy."""
    running: tuple[Row, RunningSandbox] | None

    def origin(self) -> tuple[model.Workspace, Acquired]:
        """Return it and its first commit. InvalidStateError: it did not come from a repository."""
        cache = self.tree and self.tree.repository
        acquired = None if self.workspace is None else first_commit(self.workspace, cache)
        if self.workspace is None or acquired is None:
            raise InvalidStateError(
                f"{self.name!r} was not opened from a repository: there is nothing to compare it with",
                hint="paddock cp takes files out; paddock diff --mount is for directories of this machine",
            )
        return self.workspace, acquired


class Sources:
    def __init__(
        self, sandboxes: Sandboxes, snapshots: Snapshots, workspaces: Workspaces, utilities: UtilitySandboxes
    ) -> None:
        self._sandboxes, self._snapshots = sandboxes, snapshots
        self._workspaces, self._utilities = workspaces, utilities

    async def find(self, reference: str, op: Operation) -> Source:
        """Find a living sandbox before a workspace: it may have a copy. Raises NotFoundError, SandboxDiedError."""
        owner = op.principal.id
        try:
            row, running = await self._sandboxes.reach(reference, op)
        except (NotFoundError, SandboxDiedError) as error:
            try:
                workspace, tree = await self._workspaces.opened(reference, owner, op)
            except NotFoundError:
                if isinstance(error, SandboxDiedError):
                    raise error from None
                raise NotFoundError(
                    f"no workspace and no sandbox {reference!r}",
                    hint="`paddock workspace ls` and `paddock ls` list them",
                ) from None
            running = None
            if workspace.sandbox is not None:
                with suppress(NotFoundError, SandboxDiedError):
                    running = await self._sandboxes.reach(workspace.sandbox, op)
            return Source(workspace.id, workspace.name, workspace, tree, running)
        name = row.sandbox.spec.name or row.id
        if row.workspace is None or row.workspace.workspace is None:
            return Source(row.id, name, None, None, (row, running))
        workspace, tree = await self._workspaces.opened(row.workspace.workspace, owner, op)
        is_own = row.workspace.tree == tree.tree
        id, name = (workspace.id, workspace.name) if is_own else (row.id, name)
        return Source(id, name, workspace, row.workspace, (row, running))

    @asynccontextmanager
    async def utility(self, source: Source, op: Operation) -> AsyncGenerator[UtilitySandbox]:
        """One that reads the files as they are at one instant, and the repository that they came from."""
        assert source.tree is not None
        tree, name = source.tree, source.tree.tree
        async with AsyncExitStack() as stack:
            if source.running is not None:
                row, running = source.running
                await stack.enter_async_context(self._sandboxes.explain_death(row))
                name = await stack.enter_async_context(self._snapshots.temporary(row, running, tree=name))
            trees = WorkspaceTree(name, tree.layers, tree.repository).mounts(writable=False)
            opening = self._utilities.open(trees, op, command_seconds=READING_SECONDS)
            yield await stack.enter_async_context(opening)


class WorkspaceResults(Component):
    def __init__(self, context: Context, sources: Sources, repositories: Repositories, policies: Policies) -> None:
        super().__init__(context)
        self._sources, self._repositories, self._policies = sources, repositories, policies
        self._rows = ResultStore(self._store)

    @handles(model.DiffWorkspace)
    async def diff(self, action: model.DiffWorkspace, op: Operation) -> WorkspaceDiff:
        source = await self._sources.find(action.workspace, op)
        commit = source.origin()[1].commit
        patch = None
        async with self._sources.utility(source, op) as utility:
            await _check(utility, scripts.TREE, commit)
            output = await _check(utility, scripts.RAW, commit, output_bytes=_RAW_BYTES)
            changes = await in_thread(scripts.read_changes, output)
            if action.patch:
                patch = await _check(utility, scripts.PATCH, commit, output_bytes=_PATCH_BYTES)
        digest = {} if patch is None else {"patch_sha256": await in_thread(_sha256, patch), "bytes": len(patch)}
        op.done({"workspace": source.id, "commit": commit, "changes": len(changes), **digest})
        return WorkspaceDiff(workspace=source.id, commit=commit, changes=changes, patch=patch)

    @handles(model.PushBranch)
    async def push(self, action: model.PushBranch, op: Operation) -> PendingPublication:
        _check_message(action.message)
        source = await self._sources.find(action.workspace, op)
        workspace, origin = source.origin()
        url, began = origin.url, origin.commit
        check_epoch(workspace, action.epoch)
        ref, tip = await self._target(action, source, origin, op)
        ours = tip is not None and self._rows.last_pushed(op.principal.id, source.id, ref) == (ref, tip)
        name, email = _identity(action.author or _AUTHOR)
        message = (action.message or f"Work of {source.name}").encode()
        environment = git_environment(author=name, email=email)
        async with self._sources.utility(source, op) as utility:
            await _check(utility, scripts.TREE, began)
            arguments = (began, tip or "", "ours" if ours else "")
            output = await _check(utility, scripts.COMMIT, *arguments, input=message, env=environment)
            commit = scripts.read_commit(output)
            if commit != tip:

                async def exact() -> tuple[str, ...]:
                    """Return the tree and what it is on: the commit itself would be another one each time."""
                    return url, ref, tip or "", (await _check(utility, scripts.STATE)).decode("ascii", "replace")

                what = f"push {source.name} to {ref} of {url}"
                await self._ask("git.push", action, source, op, exact, what)
            pack = None
            if commit != tip and await self._repositories.git.commit(origin.repository, commit) != commit:
                pack = await _check(utility, scripts.PACK, began, output_bytes=_PACK_BYTES)
        pushed = PushedBranch(
            workspace=source.id, repository=url, ref=ref, commit=commit, previous=tip, pushed=commit != tip
        )
        detail = {name: getattr(pushed, name) for name in PushedBranch.__fields__ if name != "pushed"}

        async def done(_: object) -> PushedBranch:
            if commit != tip:
                self._rows.pushed(op.principal.id, source.id, ref, commit, self._clock.wall())
            op.done(detail)
            with suppress(PaddockError):  # the cache sees the commit, and the workspace's status goes by that
                await self._repositories.acquire(url, ref, 0.0, op.principal)
            return pushed

        async with AsyncExitStack() as resources:
            if commit == tip:
                return PendingPublication(op, resources.pop_all(), done)
            name = await resources.enter_async_context(self._quarantine(origin.repository, pack, commit))
            lender = origin.repository if name != origin.repository else None
            git = self._repositories.git
            if tip is not None and not action.force and not await git.leads(name, tip, commit, lender=lender):
                raise InvalidStateError(
                    f"{ref} of {url} has {tip}, which is not in what the workspace has",
                    hint="another branch, or --force, which takes the place of what is there",
                )
            digest = None if pack is None else await in_thread(_sha256, pack)
            self._audit.event("workspace.push", asked_by=op.number, what=detail, pack_sha256=digest, force=action.force)
            plan = PushPlan(repository=name, lender=lender, url=url, ref=ref, commit=commit, expect=tip)
            return PendingPublication(op, resources.pop_all(), done, push=plan)

    @asynccontextmanager
    async def _quarantine(self, cache: str, pack: bytes | None, commit: str) -> AsyncGenerator[str]:
        """Yield a repository for the pack, gone with the block. Without one, all of it is in `cache` already.
        InvalidArgumentError: git refuses what is in the pack."""
        if pack is None:
            yield cache
            return
        name, git = QUARANTINE + os.urandom(8).hex(), self._repositories.git
        try:
            await git.receive(name, cache, pack, commit)
            yield name
        finally:
            await asyncio.to_thread(_remove, git.path(name))

    @handles(model.OpenPullRequest)
    async def pull_request(self, action: model.OpenPullRequest, op: Operation) -> PendingPublication:
        if not action.title.strip() or len(action.title) > 1024 or len(action.body) > _MESSAGE_CHARS:
            raise InvalidArgumentError("a pull request has a title of 1 to 1024 characters", field="title")
        source = await self._sources.find(action.workspace, op)
        workspace, origin = source.origin()
        pushed = self._rows.last_pushed(op.principal.id, source.id, action.branch and _HEADS + action.branch)
        if pushed is None:
            raise InvalidStateError(
                f"nothing of {source.name!r} was pushed yet", hint=f"paddock branch {source.name}, then again"
            )
        branch = pushed[0].removeprefix(_HEADS)

        async def exact() -> tuple[str, ...]:
            return origin.url, *pushed

        what = f"ask {origin.url} to take in {branch}: {action.title}"
        await self._ask("publish", action, source, op, exact, what)

        async def done(found: PullRequest | None) -> PullRequest:
            assert found is not None
            op.done({"workspace": source.id, "repository": origin.url, "number": found.number, "url": found.url})
            return found

        plan = PullRequestPlan(
            url=origin.url,
            branch=branch,
            base=action.base or (workspace.branch if workspace.branch != branch else None),
            title=action.title,
            body=action.body,
            draft=action.draft,
            forge=action.forge,
        )
        return PendingPublication(op, AsyncExitStack(), done, pull_request=plan)

    async def _ask(
        self,
        kind: ActionKind,
        action: model.PushBranch | model.OpenPullRequest,
        source: Source,
        op: Operation,
        exact: Exact,
        what: str,
    ) -> None:
        own = None if source.running is None else source.running[0].sandbox.policy
        workspace = None if source.workspace is None else source.workspace.id
        await self._policies.ask(
            kind, action, op, about=source.id, own=own, workspace=workspace, exact=exact, what=what
        )

    async def _target(
        self, action: model.PushBranch, source: Source, origin: Acquired, op: Operation
    ) -> tuple[str, str | None]:
        """Return the full name of the branch, and what the remote has there now."""
        last = self._rows.last_pushed(op.principal.id, source.id)
        branch = action.branch or (last[0].removeprefix(_HEADS) if last else f"paddock/{source.name}")
        if branch.startswith(("refs/", "-", "+")) or branch == "HEAD":
            raise InvalidArgumentError(
                f"{branch!r} is not the name of a branch", hint="leave refs/heads/ out", field="branch"
            )
        from paddock.storage.git import check_ref

        ref = check_ref(_HEADS + branch)
        try:
            acquired = await self._repositories.acquire(origin.url, ref, 0.0, op.principal)
        except NotFoundError as missing:
            if missing.details.get("ref") != ref:
                raise  # the repository itself
            return ref, None
        if acquired.repository != origin.repository:
            raise InvalidStateError(
                f"the repository of {source.name!r} was cached anew since it was opened", hint="open another workspace"
            )
        return ref, acquired.commit


class PendingPublication:
    """Hold a push or pull request that the caller's process makes. `done` records it, and returns the caller's result.

    `needs` closes after it has ended: the repository that the caller pushes from.
    """

    def __init__(
        self,
        op: Operation,
        resources: AsyncExitStack,
        done: Callable[[PullRequest | None], Awaitable[PushedBranch | PullRequest]],
        *,
        push: PushPlan | None = None,
        pull_request: PullRequestPlan | None = None,
    ) -> None:
        self.push, self.pull_request = push, pull_request
        self._op, self._resources, self._done = op, resources, done
        op.defer()

    async def finish(self, published: model.Published) -> PushedBranch | PullRequest:
        async with self._resources:
            if published.error is not None:
                error = codec.decode_error(published.error.encode())
                self._op.failed(error)
                raise error
            if self.pull_request is not None and published.pull_request is None:
                raise InvalidArgumentError("a pull request has a number and a URL")
            return await self._done(published.pull_request)

    async def aclose(self) -> None:
        async with self._resources:
            self._op.failed(Unknown("the caller's process ended before it said what became of it"))


def remove_quarantines(directory: Path) -> None:
    """Delete the quarantines that the daemon before this one has left."""
    for path in directory.glob(f"{QUARANTINE}*"):
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)  # by descriptors: it follows no link
    else:
        path.unlink(missing_ok=True)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def _check(
    utility: UtilitySandbox,
    script: str,
    *arguments: str,
    input: bytes = b"",
    env: Mapping[str, str] | None = None,
    output_bytes: int = 1 << 20,
) -> bytes:
    """Return what the script prints. InvalidStateError: git cannot work with what is in the workspace, or it is too
    much."""
    try:
        return await utility.run(script, *arguments, env=env, input=(input,), output_bytes=output_bytes)
    except ErrandFailedError as error:
        text = "".join(c if c.isprintable() else " " for c in error.message)[-400:]
        message = f"git cannot work with what is in the workspace: {text}"
        raise InvalidStateError(message, hint="git status inside") from None


def _check_message(message: str | None) -> None:
    if message is not None and (not message.strip() or len(message) > _MESSAGE_CHARS or "\0" in message):
        raise InvalidArgumentError("a message has 1 to 65536 characters", field="message")


def _identity(text: str) -> tuple[str, str]:
    match = _IDENTITY.fullmatch(text.strip())
    if match is None or not match["name"].strip() or not text.isprintable():
        raise InvalidArgumentError(f"{text[:200]!r} is not an author", hint="Name <name@example.org>", field="author")
    return match["name"].strip(), match["email"]
