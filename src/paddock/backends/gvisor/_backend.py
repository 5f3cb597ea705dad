"""Sandboxes of level `gvisor`: a VMM in which runsc's two halves run, gofer and sentry."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path, PurePosixPath
from typing import Any

from paddock.backends._checks import missing, ok, weak
from paddock.backends.base import Capabilities, Command, Exits, SandboxPlan
from paddock.backends.jail import SupervisorClient
from paddock.backends.vmm import GUEST, Orders, VmmBackend, VmmInstance, cores, kvm
from paddock.errors import InvalidArgumentError, LevelUnavailableError, PaddockError, UnsupportedError
from paddock.model import Check, ExecId, ExecSpec, Level, Limit, SandboxId, replace
from paddock.storage.templates.kit import PLACE as KIT
from paddock.storage.templates.recipe import Entry, Recipe, of_kit, writes
from paddock.supervisor.plan import KVM, JailPlan, Tree
from paddock.wire.guest import PartFlags as Part
from paddock.wire.guest import Renew

from . import _platforms, _probe, _proof
from ._bake import BAKED, STATE, GuestInputs, seal_key
from ._bundle import filter, flags, saves, served, specification

PLACE = "/.vessel"
"""The path of runsc's directory in the jail."""
_KEY_FILE = "gvisor.key"
_BAKING_SECONDS = 120.0
_NOBODY = 65534
_NO_PART = Part(0)
_MIB = 1 << 20
_TMP = "/tmp"  # noqa: S108 (inside)
# The sentry and the gofer hold descriptors for each file in use, and ask for the limit once, at their start.
_OPEN_FILES = 65536
# The outer kernel counts threads. A process inside is a traced process with some threads, and the sentry has some that
# trace it. The sentry ends if the kernel refuses one.
_THREADS_OF_ONE = 10
_MEMORY_FILE_BYTES = 1 << 50  # all memory inside is one sparse file, which grows by gigabytes


class GvisorInstance(VmmInstance):
    async def start(self, spec: ExecSpec, *, id: ExecId, background: bool) -> Command:
        if spec.pty is not None:
            self._level.capabilities.require("pty", self._level.name)
        return await super().start(spec, id=id, background=background)

    @contextlib.asynccontextmanager
    async def frozen(self) -> AsyncGenerator[None]:
        """Freeze the sandbox, and save its memory in its tree if possible."""
        async with self.copying, self.roused(), contextlib.AsyncExitStack() as saved:
            with contextlib.suppress(UnsupportedError):
                await saved.enter_async_context(self.saved())
            async with super().frozen():
                yield


class GvisorBackend(VmmBackend):
    name = "gvisor"
    instance = GvisorInstance
    level = Level.GVISOR
    extra_memory_mib = 128
    extra_processes = 96

    def __init__(self, state_dir: Path, *, supervisor: SupervisorClient | None = None, for_tests: bool = False) -> None:
        super().__init__(state_dir, supervisor=supervisor, for_tests=for_tests)
        self._found: _probe.FoundRunsc | None = None
        self._why_cold: str | None = None
        self._trying: asyncio.Task[_probe.FoundRunsc] | None = None

    def probe(self) -> str | None:
        reason = super().probe()
        if reason is not None:
            return reason
        found = self._look()
        return found if isinstance(found, str) else None

    @property
    def capabilities(self) -> Capabilities:
        jail = super().capabilities
        # The sentry refuses processes above the limit, and nothing counts how often.
        found = self._found or _probe.remembered(self.directory)
        terminals = found is not None and found.terminals
        return replace(jail, pty=terminals, enforced=jail.enforced - {Limit.PROCESSES})

    def checks(self) -> tuple[Check, ...]:
        reason = super().probe()
        found = self._look() if reason is None else reason
        if isinstance(found, str):
            fix = _probe.fix(self.directory) if reason is None else self.remedy(reason)
            return (missing("level", self.name, found, fix),)
        detail = f"runsc {found.version}, platform {_told(found, self.config.gvisor_platform)}, in a jail"
        if not found.terminals:
            detail += "; no terminals: this version's lack Ctrl-C, or don't say that their size has changed"
        if self._why_cold is not None:
            detail += f"; each starts from nothing: {self._why_cold}"
        if found.stats:
            return (ok("level", self.name, detail),)
        refused = (
            "ls and stat of newer coreutils (Debian 12's, say) fail inside: this version refuses what they ask for"
        )
        return (weak("level", self.name, f"{detail}; {refused}", _probe.FIX_OLD),)

    async def build_plan(self, plan: SandboxPlan, jail: JailPlan) -> JailPlan:
        found = await asyncio.to_thread(self._look)
        if isinstance(found, str):
            raise LevelUnavailableError(found, hint=_probe.fix(self.directory))
        return await self.dressed(plan, jail, await self._settled(found) if found.tries_kvm else found)

    async def _settled(self, found: _probe.FoundRunsc) -> _probe.FoundRunsc:
        """Try KVM at the first call. The trial runs to its end, even if the caller leaves."""
        if self._trying is None:
            self._trying = self.start(self._try_kvm(found))
        settled = await asyncio.shield(self._trying)
        if settled.refused:
            raise LevelUnavailableError(settled.refused, hint=_probe.fix(self.directory))
        return settled

    async def _try_kvm(self, found: _probe.FoundRunsc) -> _probe.FoundRunsc:
        try:
            self._found = await _proof.settle(self, found)
        finally:
            self._trying = None
        return self._found

    async def dressed(
        self, plan: SandboxPlan, jail: JailPlan, found: _probe.FoundRunsc, *, must_bake: bool = False
    ) -> JailPlan:
        """Return the VMM's jail, for that runsc on that platform."""
        dressed = await self._dressed(plan, jail, found)
        if not self._saves(found, plan):
            return dressed
        try:
            baked = await self._baked(plan, jail, found)
        except PaddockError as error:
            if must_bake:
                raise
            self._why_cold = error.message  # no reason not to start one by itself
            return dressed
        return dressed._replace(trees=(*dressed.trees, Tree(name=baked, target=BAKED, writable=False)))

    async def orders(self, plan: SandboxPlan, jail: JailPlan, found: _probe.FoundRunsc | str | None = None) -> Orders:
        """Return the controller's orders for that runsc on that platform, or for the ones that are taken here."""
        found = found or self._look()
        assert not isinstance(found, str)
        shape = await self._shape(plan, jail, found)
        options: dict[str, Any] = {
            "runsc": f"{PLACE}/runsc",
            "flags": shape.flags,
            "filter": filter(),
            "served": served(found.date),
            "spec": {**shape.spec, "hostname": plan.hostname},
            "cpus": shape.cpus,
            "memory_bytes": plan.spec.limits.memory_mib * _MIB,
            "sentry_uid": _NOBODY if self.root_user else None,
            "device": _platforms.device(found.platform),
        }
        if saves(found.date):
            options |= {"forget": STATE}
        if self._saves(found, plan):
            key = (await asyncio.to_thread(self._key)).hex()
            baked = BAKED + STATE if any(tree.target == BAKED for tree in jail.trees) else None
            options |= {"loopback": True}
            options |= {"saves": {"stamp": shape.stamp, "key": key, "place": STATE, "baked": baked}}
            if found.beside:
                before = await self._shape(plan, jail, replace(found, platform=found.beside))
                options["saves"]["before"] = {before.stamp: before.flags}
        return Orders(driver=self.name, options=options, env=self.own_environment(plan))

    async def rehearse(self, plan: SandboxPlan, instance: VmmInstance) -> None:
        await self.ready(plan, instance)  # its init has not touched its memory since that was loaded
        await super().rehearse(plan, instance)

    async def ready(self, plan: SandboxPlan, instance: VmmInstance) -> None:
        name = plan.hostname.encode()
        hosts = Part.HOSTS if self.hosts_is_its_own(plan) else _NO_PART
        await instance.tell(Renew(parts=Part.HOSTNAME | hosts, hostname=name, hosts=name), may_fail=Part.HOSTS)

    async def exits(self, id: SandboxId, instance_id: int, *, make: bool = False) -> Exits | None:
        found = self._look()
        if not make or isinstance(found, str) or not self._saves(found):
            return await super().exits(id, instance_id, make=make)
        try:
            return await super().exits(id, instance_id)
        except InvalidArgumentError:
            raise UnsupportedError(
                f"{id} was made without a way out, so its network is its sentry's own, which leads nowhere",
                hint="at level gvisor, create it with a policy",
            ) from None

    def _saves(self, found: _probe.FoundRunsc, plan: SandboxPlan | None = None) -> bool:
        """Tell whether it can save a sandbox's memory.

        It can't if the sandbox has sockets of the jail. It can't if the sentry opens files itself (where all files have
        one id): the state then forgets its mounts. A mount at /tmp or below it also prevents it. runsc hides an empty
        /tmp below a private one, and the baked state has that, because its /tmp is empty.
        """
        if plan is not None and (
            plan.exits or any(PurePosixPath(m.target).is_relative_to(_TMP) for m in plan.spec.mounts)
        ):
            return False
        return saves(found.date) and self.root_user

    # baking

    async def _dressed(self, plan: SandboxPlan, jail: JailPlan, found: _probe.FoundRunsc) -> JailPlan:
        runsc = await asyncio.to_thread((await self.templates()).part, _recipe(found))
        return jail._replace(
            trees=(*jail.trees, Tree(name=runsc, target=PLACE, writable=False), await self.guest()),
            processes=plan.spec.limits.processes * _THREADS_OF_ONE + self.extra_processes,
            open_files=max(jail.open_files, _OPEN_FILES),
            file_bytes=_MEMORY_FILE_BYTES,
            devices=(KVM,) if found.platform == _platforms.KVM else (),
        )

    async def _shape(self, plan: SandboxPlan, jail: JailPlan, found: _probe.FoundRunsc) -> GuestInputs:
        user = plan.template.user(None)
        assert user is not None
        limits, loopback = plan.spec.limits, self._saves(found, plan)
        return GuestInputs(
            version=found.version,
            platform=found.platform,
            program=_probe.stamp(Path(found.program)),
            flags=tuple(flags(found.platform, found.date, one_id=not self.root_user, loopback=loopback)),
            spec=specification(
                argv=(GUEST,),
                hostname="sandbox",
                uid=0 if self.root_user else user.uid,
                limits=limits,
                quotas=Limit.DISK in self.capabilities.enforced,
                occupied=(*(mount.target for mount in jail.mounts), *(tree.target for tree in jail.trees)),
                hidden=(KIT, PLACE, *((STATE,) if loopback else ())),
            ),
            cpus=cores(limits.cpus),
            guest=(await self.guest()).name,
            who=[(one.uid, one.gid) for one in (user, plan.template.user("0")) if one],
        )

    async def _baked(self, plan: SandboxPlan, jail: JailPlan, found: _probe.FoundRunsc) -> str:
        shape = await self._shape(plan, jail, found)
        boot = self.booting(lambda tree: self._bake(tree, plan, found))
        return await self.baked(shape.recipe(await asyncio.to_thread(self._key), boot))

    async def _bake(self, tree: str, plan: SandboxPlan, found: _probe.FoundRunsc) -> None:
        """Start a guest in the tree and leave its state there."""
        own = self.unbaked(plan, tree, _BAKING_SECONDS)
        jail = await self._dressed(own, await self.furnish(self.jail_plan(own)), found)
        async with self.oven(own, jail) as instance:
            orders = await self.orders(own, jail, found)
            if found.platform == _platforms.KVM:
                orders = replace(orders, greeting_seconds=_proof.GREETING_SECONDS)
            await instance.start_vmm(orders)
            for identity in self.identities:  # so that its agent runs
                (await instance.connect(identity)).close()
            await (await instance.control()).call("freeze", seconds=None, for_good=True)

    def _key(self) -> bytes:
        return seal_key(self.directory / _KEY_FILE)

    def _look(self) -> _probe.FoundRunsc | str:
        if self._found is None or self._found.refused:
            found = _probe.look(self.directory)
            if isinstance(found, str):
                return found
            self._found = found
        return self._found


def _told(found: _probe.FoundRunsc, asked: str | None) -> str:
    if found.platform == _platforms.KVM:
        return "KVM"
    if found.tries_kvm:
        return f"{found.platform} (KVM is tried with the first sandbox)"
    why = found.without or (_platforms.why_not_kvm(asked) if kvm.DEVICE.exists() else None)
    return found.platform + (f" (not KVM: {why})" if why else "")


def _recipe(found: _probe.FoundRunsc) -> Recipe:
    """Return the recipe of the tree with runsc: it works with any template, and stays when the machine's runsc
    changes.
    """

    program = Path(found.program)
    fill = writes(lambda: {"runsc": Entry("file", 0o755, program.read_bytes())})
    return of_kit("runsc", ("1", found.version, *_probe.stamp(program)), fill)
