"""Trees of the pool in a container are carried: in when it is made, out whenever the pool's copy has to be true.

An engine cannot see the pool, which may be mounted for the supervisor alone, nor its owners. So a jail that has the
trees does the work on that side, where all that comes from inside a container is read by nobody but a program in that
jail.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

from paddock.backends._base import SandboxPlan, TreeMount
from paddock.backends.guest import pack_whole, unpack_exact
from paddock.backends.guest._connection import GuestConnection
from paddock.backends.jail import JailBackend, SupervisorClient
from paddock.backends.jail._backend import JailInstance
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
from paddock.storage.pool.worker import Worker
from paddock.wire import close_all

_LIMITS = Limits(memory_mib=1024, disk_mib=256, processes=64, tmp_mib=64)
_SECONDS = 3600.0
_TREE = "nc_"
_TOOLS = "host"
"""The template of the jails that carry: it has a Python with a library."""
_READ = 256 << 10
_END = bytes(1024)
"""What an archive ends with that is whole (POSIX, pax): two blocks of nothing."""
_IDS = 65536


Owner = tuple[str, int, int]


def owner(template: Template) -> Owner:
    """Whose the files of a workspace are inside: the default user's name and ids."""
    user = template.user(None)
    assert user is not None
    return user.name, user.uid, user.gid


class Porters(JailBackend):
    """The jails that carry: in the supervisor's records of a kind of their own, which nobody takes for sandboxes."""

    name = "container"


class Carrier:
    """The pool as containers need it: opened for the first image of a template, or the first tree that is carried."""

    def __init__(self, state_dir: Path, supervisor: SupervisorClient | None) -> None:
        self._state, self._supervisor = state_dir, supervisor
        self._made: Porters | None = None

    @property
    def _porters(self) -> Porters:
        """Made when first needed: the supervisor's connection stays open for those who have joined it."""
        self._made = self._made or Porters(self._state, supervisor=self._supervisor)
        return self._made

    @property
    def supervisor(self) -> SupervisorClient:
        return self._porters.supervisor

    async def pool(self) -> tuple[int, Worker]:
        """Return the pool's directory, which stays the supervisor's, and who may read what is in it. PaddockError."""
        templates = await self._porters.supervisor.templates()
        return await self._porters.pool(), templates.pool.worker

    @contextlib.asynccontextmanager
    async def mounted(self, plan: SandboxPlan, pid: int) -> AsyncGenerator[dict[str, int]]:
        """Detached mounts of the plan's directories by their targets, open within the block, for the container of that
        process. InvalidArgumentError, Unsupported.

        The supervisor finds and makes them as for a jail, with the ids of the machine. The engine is told nothing of
        them.
        """
        if not plan.spec.mounts:
            yield {}
            return
        _require_own_ids(pid)
        message = self._porters.jail_plan(plan).to_message()
        answer = await self._porters.supervisor.request("mounts", plan=message)
        descriptors = cast("list[int]", answer.get("fds", []))
        try:
            yield dict(zip((mount.target for mount in plan.spec.mounts), descriptors, strict=True))
        finally:
            close_all(descriptors)

    async def aclose(self) -> None:
        if self._made is not None:
            await self._made.aclose()

    async def into(self, id: SandboxId, trees: tuple[TreeMount, ...], inside: Any, user: Owner) -> None:
        """Copy what is in the trees into the container, as files of `user`; a tree that isn't writable as root's."""
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
                    DownloadTree(sandbox=id, path=tree.target, user="root" if self._porters.whole else None)
                )
                writer = await inside.file(UploadTree(sandbox=id, path=tree.target, user=owner))
                while data := await reader.read(_READ):
                    await writer.write(data)
                await writer.aclose()

    async def out(
        self,
        id: SandboxId,
        trees: tuple[TreeMount, ...],
        user: Owner,
        archive: Callable[[str], contextlib.AbstractAsyncContextManager[AsyncIterable[bytes]]],
    ) -> None:
        """Make each tree what `archive` says of its target, as files of `user`; nothing goes before all is there.

        ErrandFailedError: what the container holds cannot be kept. PlatformError: it has to be done again.
        """
        async with self._jail(id, trees) as jail:
            for tree in trees:
                async with archive(tree.target) as parts:
                    await _lay(await self._connection(jail), tree.target, parts, owner=user[1:])

    async def bring(
        self, id: SandboxId, root: TreeMount, trees: tuple[TreeMount, ...], user: Owner, inside: GuestConnection
    ) -> None:
        """Make the trees what `inside`, a connection to the carrier of one that stands still, have at this instant."""
        left_out = [tree.target for tree in trees]
        async with self._jail(id, (root, *trees)) as jail:
            connection = await self._connection(jail)
            for tree in trees:
                await _lay(connection, tree.target, _packed(inside, tree.target), owner=user[1:])
            await _lay(connection, root.target, _packed(inside, "/", left_out))

    async def back(self, id: SandboxId, root: TreeMount, trees: tuple[TreeMount, ...], inside: GuestConnection) -> None:
        """Copy the root file system into the container; those of `trees` are left out. ErrandFailed."""
        async with self._jail(id, (root,)) as jail:
            parts = _packed(await self._connection(jail), root.target)
            try:
                await _lay(inside, "/", parts, left_out=[tree.target for tree in trees])
            except SandboxError as error:
                words = f"its files could not be brought into the container: {error.message}"
                raise ErrandFailedError(words) from None

    @contextlib.asynccontextmanager
    async def _jail(self, id: SandboxId, trees: tuple[TreeMount, ...]) -> AsyncGenerator[JailInstance]:
        """For whoever carries alone. What undoes one must not meet another of the same id, that came after it: so each
        has a number and a tree of its own."""
        templates = await self._porters.supervisor.templates()
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
            incarnation=int.from_bytes(os.urandom(4), "big"),
        )
        if (left := await self._porters.adopt(id)) is not None:  # a killed service's
            await left.kill()
        for name in pool.names():
            if name.startswith(every):
                pool.delete(name)
        pool.create(own, layers=template.layers, limit_bytes=_LIMITS.disk_mib << 20)
        try:
            jail = await self._porters.create(plan)
            try:
                yield jail
            finally:
                await jail.kill()
                await jail.aclose()
        finally:
            try:
                await self._porters.forget(id)  # of one that was never complete, too
            finally:
                pool.delete(own)

    async def _connection(self, jail: JailInstance) -> GuestConnection:
        return await jail.connection("root" if self._porters.whole else "user")


def require_apart(plan: SandboxPlan, carried: tuple[TreeMount, ...]) -> None:
    """UnsupportedError: one lies in a workspace, or around one, whose files are put there when it runs."""
    for mount in plan.spec.mounts:
        for tree in carried:
            ours, theirs = f"{mount.target}/", f"{tree.target}/"
            if ours.startswith(theirs) or theirs.startswith(ours):
                raise UnsupportedError(
                    f"in a container nothing is mounted in a workspace or around it: {mount.target} and {tree.target}",
                    hint="give the mount another target, or level='jail', 'gvisor' or 'microvm'",
                )


def _require_own_ids(pid: int) -> None:
    """Of the container of that process. Unsupported."""
    inside, outside, count = namespaces.read_uid_map(pid)[0]
    if (inside, outside) != (0, 0) or count < _IDS:
        raise UnsupportedError(
            "this engine maps users: a directory of the host would be other people's there",
            hint="level='jail', 'gvisor' or 'microvm'",
        )


def _below(path: str, others: Sequence[str]) -> list[str]:
    return [os.path.relpath(other, path) for other in others]


async def _packed(inside: GuestConnection, path: str, left_out: Sequence[str] = ()) -> AsyncGenerator[bytes]:
    """ErrandFailedError: it could not be read to its end."""
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
    """Make `target` what the archive says. ErrandFailedError: it can't be. PlatformError: the archive is cut off."""
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
