"""Where what a workspace has made waits until git has looked at it, and from where it is pushed."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from paddock.errors import PolicyDenied
from paddock.storage.repositories import HostGit, Proof, Refused, Remote

QUARANTINE = "qu_"


class Quarantine:
    """`commit` and all that it leads to are here, or in the repository that the workspace came from, `cache`."""

    def __init__(self, git: HostGit, cache: str, name: str, commit: str) -> None:
        self._git, self._commit, self._name = git, commit, name
        self._lender = cache if name != cache else None

    async def leads(self, old: str) -> bool:
        """Whether `old` is among what leads to the commit, as the host's git sees it."""
        return await self._git.leads(self._name, old, self._commit, lender=self._lender)

    async def push(self, remote: Remote, credential: Proof | None, ref: str, expect: str | None) -> None:
        """PolicyDenied: the remote does not let. InvalidState: it has something else than `expect` by now."""
        try:
            await self._git.push(
                self._name,
                remote,
                credential,
                commit=self._commit,
                ref=ref,
                expect=expect,
                lender=self._lender,
            )
        except Refused as refused:
            raise PolicyDenied(
                f"{remote.url} lets nobody push who proves himself so: {refused}", rule="remote"
            ) from None


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


def remove_quarantines(directory: Path) -> None:
    """Delete the quarantines that the daemon before this one has left."""
    for path in directory.glob(f"{QUARANTINE}*"):
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)  # by descriptors: it follows no link
    else:
        path.unlink(missing_ok=True)
