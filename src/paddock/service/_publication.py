"""A repository of its own for what a workspace has made, until git has looked at it and the caller has pushed it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from paddock.errors import InvalidArgument
from paddock.model import Published, PullRequest, PullRequestPlan, PushedBranch, PushPlan, codec
from paddock.storage.repositories import HostGit

from ._gate import Entry, Unknown

QUARANTINE = "qu_"


class Quarantine:
    """`commit` and all that it leads to are in the repository `name`, or in `lender`, from which the workspace came."""

    def __init__(self, git: HostGit, cache: str, name: str, commit: str) -> None:
        self._git, self._commit, self.name = git, commit, name
        self.lender = cache if name != cache else None

    async def leads(self, old: str) -> bool:
        """Whether `old` is among what leads to the commit, as the host's git sees it."""
        return await self._git.leads(self.name, old, self._commit, lender=self.lender)


class Publication:
    def __init__(self, git: HostGit) -> None:
        self._git = git

    @asynccontextmanager
    async def quarantine(self, cache: str, pack: bytes | None, commit: str) -> AsyncGenerator[Quarantine]:
        """A repository of its own for the pack, gone with the block. Without one, all of it is in `cache` already.

        InvalidArgument: git refuses what is in the pack.
        """
        if pack is None:
            yield Quarantine(self._git, cache, cache, commit)
            return
        name = QUARANTINE + os.urandom(8).hex()
        try:
            await self._git.receive(name, cache, pack, commit)
            yield Quarantine(self._git, cache, name, commit)
        finally:
            await asyncio.to_thread(_remove, self._git.path(name))


class Publishing:
    """A push or a pull request that the caller's process makes. `done` records it, and says what the caller is told.

    `needs` closes when it has ended: the repository that the caller pushes from."""

    def __init__(
        self,
        entry: Entry,
        needs: AsyncExitStack,
        done: Callable[[PullRequest | None], PushedBranch | PullRequest],
        *,
        push: PushPlan | None = None,
        pull_request: PullRequestPlan | None = None,
    ) -> None:
        self.push, self.pull_request = push, pull_request
        self._entry, self._needs, self._done = entry, needs, done
        entry.defer()

    async def finish(self, published: Published) -> PushedBranch | PullRequest:
        async with self._needs:
            if published.error is not None:
                error = codec.decode_error(published.error.encode())
                self._entry.failed(error)
                raise error
            if self.pull_request is not None and published.pull_request is None:
                raise InvalidArgument("a pull request has a number and a URL")
            return self._done(published.pull_request)

    async def aclose(self) -> None:
        async with self._needs:
            self._entry.failed(Unknown("the caller's process ended before it said what became of it"))


def remove_quarantines(directory: Path) -> None:
    """Delete the quarantines that the daemon before this one has left."""
    for path in directory.glob(f"{QUARANTINE}*"):
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)  # by descriptors: it follows no link
    else:
        path.unlink(missing_ok=True)
