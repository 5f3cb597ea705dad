"""VMMs that wait: up, greeted, nobody's, so that a create takes one instead of starting it (docs/design/levels.md).

They belong to the program that made them, and end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Generator
from typing import TYPE_CHECKING

import msgspec

from paddock.backends._base import SandboxPlan
from paddock.backends._threads import to_its_end
from paddock.backends.vmm._instance import VmmInstance
from paddock.errors import NotFound, PaddockError, SandboxError
from paddock.linux import proc
from paddock.model import ExecId, ExecSpec, Limits, Noun, SandboxId, Template, mint, replace
from paddock.storage.pool import trees as trees
from paddock.supervisor._plan import CLAIM, WAITING, JailPlan

if TYPE_CHECKING:
    from paddock.storage import Pool

    from ._backend import VmmBackend

"""How many wait of each kind; 0: none. Not set: one, from the second create of its kind on."""
LIFE_SECONDS = 600.0
_LEAST_LEFT_SECONDS = 30.0
_PAUSE_SECONDS = 0.1
_MOST_KINDS = 2
_REMEMBERED_KINDS = 8
_HAND_OVER_SECONDS = 30.0
_REHEARSAL_SECONDS = 60.0
_MOST_ENVIRONMENT = 16_384
REFUSES = "/.guest/paddock-guest"
"""The guest's program, by a name that has it do nothing."""


class Kind(msgspec.Struct, frozen=True):
    """All that cannot be changed any more when a VMM is up."""

    jail: JailPlan
    limits: Limits
    template: Template

    @classmethod
    def of(cls, backend: VmmBackend, plan: SandboxPlan, jail: JailPlan) -> Kind | None:
        """None: nothing that was made for anybody could be made into this one."""
        bare = backend.bare(plan, jail)
        if bare is None or (jail.fault and not jail.fault.startswith(CLAIM)):
            return None
        common = bare._replace(
            id="",
            hostname="",
            tree="",
            env={},
            deadline=0.0,
            incarnation=0,
            parent="",
            idle_seconds=0.0,
            trace=False,
            fault="",
        )
        return cls(common, plan.spec.limits, plan.template)


class Prestarted(msgspec.Struct, eq=False):
    """One that waits. Its tree, which is called as it is, is in use until it is deleted."""

    kind: Kind
    instance: VmmInstance
    until: float
    watch: asyncio.Task[None] | None = None

    @property
    def id(self) -> SandboxId:
        return self.instance.id


class _Wish(msgspec.Struct, eq=False):
    kind: Kind
    plan: SandboxPlan
    creates: int = 0
    refused: bool = False
    """It could not be made: not tried again before somebody wants one."""


class Waiting:
    """Those of one backend."""

    def __init__(self, backend: VmmBackend) -> None:
        self._backend = backend
        self._stock: list[Prestarted] = []
        self._wishes: list[_Wish] = []  # the latest last
        self._making: asyncio.Task[None] | None = None
        self._tidying: set[asyncio.Task[None]] = set()
        self._used_at = 0.0
        self._creates = 0
        self.quiet_seconds = 1.0
        """After the last create: its first command does not have to share the machine."""
        self._closed = False
        given = backend.config.spares
        self.count = 1 if given is None else given
        self.from_create = 2 if given is None else 1

    @contextlib.contextmanager
    def creating(self) -> Generator[None]:
        """Somebody waits for a sandbox meanwhile: none is begun to be made for nobody."""
        self._creates += 1
        try:
            yield
        finally:
            self._creates -= 1
            self._used_at = asyncio.get_running_loop().time()

    async def claim(self, plan: SandboxPlan, jail: JailPlan) -> VmmInstance | None:
        """The sandbox of `plan`, of one that waited; None: there is none that could be it, or it has just died."""
        kind = Kind.of(self._backend, plan, jail)
        vmm = next((one for one in self._stock if one.kind == kind and one.until > proc.boottime()), None)
        env = self._backend.own_environment(plan)
        if vmm is None or sum(map(len, (*env, *env.values()))) > _MOST_ENVIRONMENT:
            return None
        pool = await self._backend.trees()
        if vmm not in self._stock or not trees.is_untouched(pool, plan.tree):
            return None
        self._leave(vmm)
        claiming = self._backend.start(self._hand_over(vmm, plan, jail, env))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            # It goes on all the same. Should the caller lose patience here too, this is still done.
            await asyncio.shield(self._backend.start(_drop(claiming)))
            raise

    def used(self, plan: SandboxPlan, jail: JailPlan) -> None:
        """A sandbox was just made: soon one of its kind may wait for the next."""
        kind = Kind.of(self._backend, plan, jail)
        if kind is None or not self.count:
            return
        wish = next((wish for wish in self._wishes if wish.kind == kind), None)
        if wish is None:
            wish = _Wish(kind, plan)
        else:
            self._wishes.remove(wish)
        self._wishes.append(wish)
        del self._wishes[:-_REMEMBERED_KINDS]
        wish.creates += 1
        wish.refused = False
        if not self._closed and (self._making is None or self._making.done()):
            self._making = self._backend.start(self._stock_up())

    @property
    def ready(self) -> int:
        """How many there are to be had."""
        return len(self._stock)

    async def settled(self) -> None:
        """Returns when none is being made any more."""
        while self._making is not None and not self._making.done():
            await asyncio.wait((self._making,))

    async def aclose(self) -> None:
        """None of them is left."""
        self._closed = True
        await asyncio.gather(*self._tidying, return_exceptions=True)
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait((self._making,))
        for vmm in list(self._stock):
            self._leave(vmm)
            await self._end(vmm)

    async def _hand_over(
        self, vmm: Prestarted, plan: SandboxPlan, jail: JailPlan, env: dict[str, str]
    ) -> VmmInstance | None:
        """It becomes the sandbox of the plan, with its tree; or it ends, and the plan has the tree that it had."""
        backend, pool = self._backend, await self._backend.trees()
        try:
            if plan.spec.mounts:
                await asyncio.to_thread(pool.add_mounts, vmm.id, len(plan.spec.mounts))
            pool.exchange(vmm.id, plan.tree)
        except (PaddockError, OSError):
            await end(backend, vmm)
            return None
        try:
            async with asyncio.timeout(_HAND_OVER_SECONDS):
                instance = await backend.pass_on(vmm.instance, plan, jail, env)
        except (PaddockError, OSError, TimeoutError):
            await backend.take_back(plan)
            pool.exchange(vmm.id, plan.tree)
            await end(backend, vmm)
            return None
        tidying = backend.start(self._tidy(vmm))
        self._tidying.add(tidying)
        tidying.add_done_callback(self._tidying.discard)
        return instance

    async def _tidy(self, vmm: Prestarted) -> None:
        """Nothing waits under its name any more."""
        with contextlib.suppress(PaddockError):
            await _delete(await self._backend.trees(), vmm.id)
            await self._backend.forget(vmm.id)

    # making

    @property
    def _kept(self) -> list[_Wish]:
        """The kinds that were used last, and not once only."""
        return [wish for wish in self._wishes if wish.creates >= self.from_create][-_MOST_KINDS:]

    async def _end_others(self) -> None:
        kinds = [wish.kind for wish in self._kept]
        for vmm in [vmm for vmm in self._stock if vmm.kind not in kinds]:
            self._leave(vmm)
            await self._end(vmm)

    def _next(self) -> _Wish | None:
        for wish in reversed(self._kept):
            waiting = sum(vmm.kind == wish.kind for vmm in self._stock)
            if waiting < self.count and not wish.refused:
                return wish
        return None

    async def _stock_up(self) -> None:
        """One at a time, when no create has come for a while. That one can't be made is no news to anybody."""
        loop = asyncio.get_running_loop()
        while (wish := self._next()) is not None:
            pause = self._used_at + self.quiet_seconds - loop.time()
            if self._creates:
                pause = max(pause, _PAUSE_SECONDS)
            if pause > 0:
                await asyncio.sleep(pause)
                continue
            await self._end_others()
            wish.refused = not _has_room(wish.kind.jail.memory_bytes)
            if not wish.refused:
                try:
                    await self._make(wish)
                except (PaddockError, OSError):
                    wish.refused = True

    async def _make(self, wish: _Wish) -> None:
        backend = self._backend
        pool = await backend.trees()
        name = f"{trees.WAITING}{os.urandom(8).hex()}"
        until = proc.boottime() + LIFE_SECONDS
        plan = replace(
            wish.plan,
            id=SandboxId(name),
            hostname="waiting",
            tree=name,
            deadline=until,
            incarnation=0,
            parent=None,
            trees=(),
            protect=(),
            spec=replace(wish.plan.spec, env={}, idle_seconds=None, mounts=()),
        )
        limit = plan.spec.limits.disk_mib << 20
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(_delete, pool, name)
            pool.in_use.add(name)
            await to_its_end(pool.create, name, layers=plan.template.layers, limit_bytes=limit)
            jail = await backend.dress(plan, await backend.furnish(backend.jail_plan(plan)))
            if Kind.of(backend, plan, jail) != wish.kind:
                raise SandboxError("its programs have changed since")  # the next create is of the new kind
            jail = jail._replace(kind=jail.kind + WAITING)
            orders = replace(await backend.orders(plan, jail), waiting=True)
            instance = await backend.embark(plan, jail, orders)
            undo.pop_all()
        vmm = Prestarted(wish.kind, instance, until - _LEAST_LEFT_SECONDS)
        try:
            async with asyncio.timeout(_REHEARSAL_SECONDS):
                await backend.rehearse(plan, instance)
        except BaseException:
            await self._end(vmm)
            raise
        vmm.watch = backend.start(self._await_end(vmm))
        self._stock.append(vmm)

    async def _await_end(self, vmm: Prestarted) -> None:
        """It was killed, or nobody came."""
        await vmm.instance.wait_ended()
        if vmm in self._stock:
            self._stock.remove(vmm)
            await self._end(vmm)

    def _leave(self, vmm: Prestarted) -> None:
        self._stock.remove(vmm)
        if vmm.watch is not None:
            vmm.watch.cancel()

    async def _end(self, vmm: Prestarted) -> None:
        await asyncio.shield(self._backend.start(end(self._backend, vmm)))


async def end(backend: VmmBackend, vmm: Prestarted) -> None:
    """And takes its tree away. What fails here, a sweep finds."""
    pool = await backend.trees()
    with contextlib.suppress(PaddockError):
        await vmm.instance.kill()
        await backend.forget(vmm.id)
    await vmm.instance.aclose()
    with contextlib.suppress(PaddockError):
        await _delete(pool, vmm.id)


async def _delete(pool: Pool, tree: str) -> None:
    """What fails here, a sweep finds."""
    try:
        await asyncio.to_thread(pool.delete, tree)
    finally:
        pool.in_use.discard(tree)


async def _drop(claiming: asyncio.Task[VmmInstance | None]) -> None:
    with contextlib.suppress(PaddockError):
        instance = await claiming
        if instance is not None:
            await instance.kill()
            await instance.aclose()


async def rehearse(instance: VmmInstance) -> None:
    """Whoever has done something once does it faster: it looks for a program, and runs the guest's own, which refuses.
    Nothing foreign runs: what it looks for has a name that no template can know."""
    for argv, cwd in (((os.urandom(16).hex(),), None), ((REFUSES,), "/")):
        with contextlib.suppress(NotFound):  # nor is that in a virtual machine, which was baked after a program ran
            handle = await instance.start(ExecSpec(argv=argv, cwd=cwd), id=ExecId(mint(Noun.EXEC)), background=False)
            try:
                await handle.wait()
            finally:
                await handle.aclose()


def _has_room(bytes: int) -> bool:
    """For one that may never be needed: an eighth of the machine's memory stays free beside it."""
    try:
        available, total = proc.machine_memory()
    except (OSError, ValueError, KeyError):
        return False
    return available - bytes >= total // 8
