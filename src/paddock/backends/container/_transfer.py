"""Copies of the pool's trees in a container: into it at its creation, and back when the pool must be current.

An engine can't see the pool, which may only have a mount for the supervisor, nor its owners. So a jail with the trees
does the work on that side. Only a program in that jail reads untrusted data from a container.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

from paddock.backends._trees import scratch_tree
from paddock.backends.base import SandboxPlan, TreeMount
from paddock.backends.guest import pack_whole, unpack_exact
from paddock.backends.guest.connection import GuestConnection
from paddock.backends.jail import JailBackend, SupervisorClient
from paddock.backends.jail.backend import JailInstance
from paddock.backends.pump import transfer
from paddock.errors import (
    ErrandFailedError,
    FileError,
    InvalidArgumentError,
    PlatformError,
    SandboxError,
    UnsupportedError,
)
from paddock.linux import namespaces, proc
from paddock.model import (
    DownloadTree,
    Limits,
    MakeDirectory,
    SandboxId,
    SandboxSpec,
    SetFileAttributes,
    Template,
    UploadTree,
)
from paddock.storage import Pool
from paddock.wire import close_all

_LIMITS = Limits(memory_mib=1024, disk_mib=256, processes=64, tmp_mib=64)
_SECONDS = 3600.0
_TREE = "nc_"
_TOOLS = "host"
"""The template of the jails that carry: it has a Python with a library."""
_READ = 256 << 10
_END = bytes(1024)
"""The end of a complete archive (POSIX, pax): two empty blocks."""
_IDS = 65536


Owner = tuple[str, int, int]


def owner(template: Template) -> Owner:
    """Whose the files of a workspace are inside: the default user's name and ids."""
    user = template.user(None)
    assert user is not None
    return user.name, user.uid, user.gid


class TransferJails(JailBackend):
    """The jails that carry trees.

    The supervisor's records have them as a separate kind, so they never count as sandboxes.
    """

    name = "container"


class TreeTransfer:
    """The pool for containers: it opens for the first image of a template, or for the first transfer of a tree."""

    def __init__(self, state_dir: Path, supervisor: SupervisorClient | None) -> None:
        self._state, self._supervisor = state_dir, supervisor
        self._made: TransferJails | None = None

    @property
    def _jails(self) -> TransferJails:
        """The jails, created at the first use, because the supervisor's connection then stays open."""
        self._made = self._made or TransferJails(self._state, supervisor=self._supervisor)
        return self._made

    @property
    def supervisor(self) -> SupervisorClient:
        return self._jails.supervisor

    async def pool(self) -> Pool:
        """Return the pool. Raises PaddockError."""
        return await self._jails.trees()

    @contextlib.asynccontextmanager
    async def mounted(self, plan: SandboxPlan, pid: int) -> AsyncGenerator[dict[str, int]]:
        """Yield detached mounts of the plan's directories by their targets, for the container of process `pid`.

        They are open within the block. The supervisor makes them as for a jail, with the ids of the machine. The engine
        doesn't know about them. Raises InvalidArgumentError and UnsupportedError.
        """
        if not plan.spec.mounts:
            yield {}
            return
        _require_own_ids(pid)
        message = self._jails.jail_plan(plan).to_message()
        answer = await self._jails.supervisor.request("mounts", plan=message)
        descriptors = cast("list[int]", answer.get("fds", []))
        try:
            yield dict(zip((mount.target for mount in plan.spec.mounts), descriptors, strict=True))
        finally:
            close_all(descriptors)

    async def aclose(self) -> None:
        if self._made is not None:
            await self._made.aclose()

    async def into(self, id: SandboxId, trees: tuple[TreeMount, ...], inside: Any, user: Owner) -> None:
        """Copy the trees into the container, as files of `user`. Files of a read-only tree belong to root."""
        name, uid, gid = user
        async with self._jail(id, trees) as jail:
            for tree in trees:
                owner = name if tree.writable else "root"
                await inside.file(MakeDirectory(sandbox=id, path=tree.target, user="root"))
                if tree.writable:
                    await inside.file(
                        SetFileAttributes(sandbox=id, path=tree.target, uid=uid, gid=gid, mode=0o755, user="root")
                    )
                reader = await jail.file(
                    DownloadTree(sandbox=id, path=tree.target, user="root" if self._jails.whole else None)
                )
                await transfer(reader, inside.file(UploadTree(sandbox=id, path=tree.target, user=owner)))

    async def out(
        self,
        id: SandboxId,
        trees: tuple[TreeMount, ...],
        user: Owner,
        archive: Callable[[str], contextlib.AbstractAsyncContextManager[AsyncIterable[bytes]]],
    ) -> None:
        """Make each tree equal to `archive` of its target, as files of `user`.

        It deletes nothing before the archive is complete.

        Raises ErrandFailedError if the container's files can't be stored, and PlatformError if the caller must try
        again.
        """
        async with self._jail(id, trees) as jail:
            for tree in trees:
                async with archive(tree.target) as parts:
                    await _lay(await self._connection(jail), tree.target, parts, owner=user[1:])

    async def bring(
        self, id: SandboxId, root: TreeMount, trees: tuple[TreeMount, ...], user: Owner, inside: GuestConnection
    ) -> None:
        """Copy the present files from `inside`, a connection to the carrier of a paused container, to the trees."""
        left_out = [tree.target for tree in trees]
        async with self._jail(id, (root, *trees)) as jail:
            connection = await self._connection(jail)
            for tree in trees:
                await _lay(connection, tree.target, _packed(inside, tree.target), owner=user[1:])
            await _lay(connection, root.target, _packed(inside, "/", left_out))

    async def back(self, id: SandboxId, root: TreeMount, trees: tuple[TreeMount, ...], inside: GuestConnection) -> None:
        """Copy the root file system into the container, without `trees`. Raises ErrandFailedError."""
        async with self._jail(id, (root,)) as jail:
            parts = _packed(await self._connection(jail), root.target)
            try:
                await _lay(inside, "/", parts, left_out=[tree.target for tree in trees])
            except SandboxError as error:
                words = f"its files could not be brought into the container: {error.message}"
                raise ErrandFailedError(words) from None

    @contextlib.asynccontextmanager
    async def _jail(self, id: SandboxId, trees: tuple[TreeMount, ...]) -> AsyncGenerator[JailInstance]:
        """Yield a jail for one transfer.

        Each has a separate number and tree, because the cleanup of one must not affect a later one with the same id.
        """
        templates = await self._jails.supervisor.templates()
        template, pool = await asyncio.to_thread(templates.get, _TOOLS), templates.pool
        every = f"{_TREE}{id.partition('_')[2]}"
        own = f"{every}_{os.urandom(4).hex()}"
        plan = SandboxPlan(
            id=id,
            hostname="carrier",
            spec=SandboxSpec(template=template.name, limits=_LIMITS, ttl_seconds=_SECONDS),
            template=template,
            tree=own,
            deadline=proc.boottime() + _SECONDS,
            trees=trees,
            instance_id=int.from_bytes(os.urandom(4), "big"),
        )
        if (left := await self._jails.adopt(id)) is not None:  # a killed service's
            await left.kill()
        for name in pool.names():
            if name.startswith(every):
                pool.delete(name)
        async with scratch_tree(pool, own, template, _LIMITS):
            try:
                jail = await self._jails.create(plan)
                try:
                    yield jail
                finally:
                    await jail.kill()
                    await jail.aclose()
            finally:
                await self._jails.forget(id)  # of one that was never complete, too

    async def _connection(self, jail: JailInstance) -> GuestConnection:
        return await jail.connection("root" if self._jails.whole else "user")


def require_apart(plan: SandboxPlan, carried: tuple[TreeMount, ...]) -> None:
    """Raise UnsupportedError if a mount lies in a workspace, or around one: the transfer would write into it."""
    for mount in plan.spec.mounts:
        for tree in carried:
            ours, theirs = f"{mount.target}/", f"{tree.target}/"
            if ours.startswith(theirs) or theirs.startswith(ours):
                raise UnsupportedError(
                    f"in a container nothing is mounted in a workspace or around it: {mount.target} and {tree.target}",
                    hint="give the mount another target, or level='jail', 'gvisor' or 'microvm'",
                )


def _require_own_ids(pid: int) -> None:
    """Check that the container of that process has the machine's own ids. Raises UnsupportedError."""
    inside, outside, count = namespaces.read_uid_map(pid)[0]
    if (inside, outside) != (0, 0) or count < _IDS:
        raise UnsupportedError(
            "this engine maps users: a directory of the host would be other people's there",
            hint="level='jail', 'gvisor' or 'microvm'",
        )


def _below(path: str, others: Sequence[str]) -> list[str]:
    return [os.path.relpath(other, path) for other in others]


async def _packed(inside: GuestConnection, path: str, left_out: Sequence[str] = ()) -> AsyncGenerator[bytes]:
    """Yield an archive of a path. Raises ErrandFailedError if it can't read all of it."""
    try:
        reader = await pack_whole(inside, path, _below(path, left_out))
        try:
            while data := await reader.read(_READ):
                yield data
        finally:
            await reader.aclose()
    except (FileError, SandboxError) as error:
        raise ErrandFailedError(f"{path} of the sandbox could not be read: {error.message}") from None


async def _lay(
    connection: GuestConnection,
    target: str,
    parts: AsyncIterable[bytes],
    *,
    owner: tuple[int, int] | None = None,
    left_out: Sequence[str] = (),
) -> None:
    """Make `target` equal to the archive.

    Raises ErrandFailedError if it can't, and PlatformError for an incomplete archive.
    """
    tail = b""
    try:
        writer = await unpack_exact(connection, target, _below(target, left_out), owner=owner)
        try:
            async for part in parts:
                tail = (tail + part)[-len(_END) :]
                await writer.write(part)
            if tail != _END:
                raise PlatformError("the archive was cut off", hint="try again")
        except BaseException:
            await writer.abort()
            raise
        await writer.aclose()
    except (FileError, InvalidArgumentError) as error:
        raise ErrandFailedError(f"what the container left at {target} could not be kept: {error.message}") from None
