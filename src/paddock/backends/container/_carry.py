"""Trees of the pool in a container are carried: in when it is made, out whenever the pool's copy has to be true.

An engine cannot see the pool, which may be mounted for the keeper alone, nor its owners. So a jail that has the trees
does the work on that side, where all that comes from inside a container is read by nobody but a program in that jail.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any

from paddock.backends._base import SandboxPlan, TreeMount
from paddock.backends.jail import JailBackend
from paddock.backends.jail._backend import JailInstance
from paddock.errors import ErrandFailed, PlatformError
from paddock.linux import proc
from paddock.model import (
    DownloadTree,
    ExecId,
    ExecSpec,
    Limits,
    MakeDirectory,
    Noun,
    SandboxId,
    SandboxSpec,
    SetFileAttributes,
    Template,
    UploadTree,
    mint,
)
from paddock.storage import Pool

from . import _lay

_LIMITS = Limits(memory_mib=1024, disk_mib=256, processes=64, tmp_mib=64)
_SECONDS = 3600.0
_READ = 256 << 10
_END = bytes(1024)
"""What an archive ends with that is whole (POSIX, pax): two blocks of nothing."""
_WORDS = 600


@cache
def _program() -> str:
    return Path(_lay.__file__).read_text()


class Porters(JailBackend):
    """The jails that carry: in the keeper's records of a kind of their own, which nobody takes for sandboxes."""

    name = "container"


class Carrier:
    def __init__(self, porters: Porters, pool: Pool, template: Callable[[], Awaitable[Template]]) -> None:
        self._porters, self._pool, self._template = porters, pool, template

    async def into(self, id: SandboxId, trees: tuple[TreeMount, ...], inside: Any, user: tuple[str, int, int]) -> None:
        """What is in the trees, as files of `user` inside; a tree that is not writable as root's."""
        name, uid, gid = user
        async with self._jail(id, trees) as jail:
            for tree in trees:
                owner = name if tree.writable else "root"
                await inside.file(MakeDirectory(sandbox=id, path=tree.target, user="root"))
                if tree.writable:
                    await inside.file(
                        SetFileAttributes(sandbox=id, path=tree.target, uid=uid, gid=gid, mode=0o755, user="root")
                    )
                reader = await jail.file(DownloadTree(sandbox=id, path=tree.target, user=self._root(jail)))
                writer = await inside.file(UploadTree(sandbox=id, path=tree.target, user=owner))
                while data := await reader.read(_READ):
                    await writer.write(data)
                await writer.aclose()

    async def out(
        self,
        id: SandboxId,
        trees: tuple[TreeMount, ...],
        user: tuple[str, int, int],
        archive: Callable[[str], contextlib.AbstractAsyncContextManager[AsyncIterable[bytes]]],
    ) -> None:
        """Makes each tree what `archive` says of its target, as files of `user`; nothing goes before all is there.

        ErrandFailed: what the container holds cannot be kept. PlatformError: it has to be done again.
        """
        async with self._jail(id, trees) as jail:
            for tree in trees:
                async with archive(tree.target) as parts:
                    await self._lay(jail, tree.target, user[1:], parts)

    async def _lay(self, jail: JailInstance, target: str, owner: tuple[int, int], parts: AsyncIterable[bytes]) -> None:
        argv = ("python3", "-I", "-S", "-c", _program(), target, *map(str, owner))
        spec = ExecSpec(argv=argv, user=self._root(jail), stdin=True, env={"LC_ALL": "C.UTF-8"})
        handle = await jail.start(spec, id=ExecId(mint(Noun.EXEC)), background=False)
        assert handle.stdin is not None
        assert handle.stderr is not None
        try:
            tail = b""
            try:
                async for part in parts:
                    tail = (tail + part)[-len(_END) :]
                    await handle.stdin.write(part)
                if tail != _END:
                    raise PlatformError("the engine's archive was cut off", hint="try again")
                await handle.stdin.aclose()
            except BrokenPipeError:
                pass  # it says why
            words = await handle.stderr.read()
            status = await handle.wait()
        finally:
            await handle.aclose()
        if status.code != 0:
            said = words.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it said nothing"]
            raise ErrandFailed(f"what the container left at {target} could not be kept: {said[0][:_WORDS]}")

    @contextlib.asynccontextmanager
    async def _jail(self, id: SandboxId, trees: tuple[TreeMount, ...]) -> AsyncGenerator[JailInstance]:
        template = await self._template()
        own = f"nc_{id.partition('_')[2]}"
        plan = SandboxPlan(
            id=id,
            hostname="carrier",
            spec=SandboxSpec(template=template.name, limits=_LIMITS, ttl_seconds=_SECONDS),
            template=template,
            tree=own,
            deadline=proc.boottime() + _SECONDS,
            trees=trees,
        )
        if (left := await self._porters.adopt(id)) is not None:  # a killed service's
            await left.kill()
        self._pool.delete(own)
        self._pool.create(own, layers=template.layers, limit_bytes=_LIMITS.disk_mib << 20)
        try:
            jail = await self._porters.create(plan)
            try:
                yield jail
            finally:
                await jail.kill()
                await jail.aclose()
                await self._porters.forget(id)
        finally:
            self._pool.delete(own)

    def _root(self, jail: JailInstance) -> str | None:
        return "root" if self._porters.whole else None
