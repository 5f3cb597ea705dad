"""The level `microvm`: a kernel of its own for every sandbox, in QEMU, in a jail."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import time
import uuid
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec

from paddock.backends._base import Capabilities, Exits, SandboxPlan
from paddock.backends.microvm import _accelerator, _kernel, _qemu, _shares
from paddock.backends.microvm._bake import BOOT, PLACE, Ingredients
from paddock.backends.microvm._initramfs import ARGUMENTS
from paddock.backends.microvm._trust import Trust
from paddock.backends.vessel import Orders, VesselBackend, VesselInstance
from paddock.errors import InvalidState, LevelUnavailable, PaddockError, SandboxError, Unsupported
from paddock.keeper._plan import KVM, JailPlan, User
from paddock.linux import proc
from paddock.model import Check, ExecHandle, ExecId, ExecSpec, Level, Limit, Noun, SandboxId, Template, mint

_MIB = 1 << 20
_BAKING_SECONDS = 600.0
_TRIAL_SECONDS = 30.0  # a machine that KVM runs greets within a few; most of it for a busy host
_ENTROPY_BYTES = 64
_KEPT = frozenset({Limit.OPEN_FILES, Limit.OUTPUT, Limit.TIME, Limit.TTL})
_WARM = (("/bin/sh", "-c", "exec /bin/true"),)


class MicrovmBackend(VesselBackend):
    name = "microvm"
    level = Level.MICROVM
    extra_memory_mib = 192
    extra_processes = 64

    def __init__(self, state_dir: Path, *, for_tests: bool = False) -> None:
        super().__init__(state_dir, for_tests=for_tests)
        self._trial = asyncio.Lock()

    @property
    def root_user(self) -> bool:
        """The machine's own, whoever we are."""
        return True

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(
            super().capabilities,
            enforced=_KEPT,
            watched=frozenset(),
            root_user=True,
            mounts=True,
            trees=True,
            exits=True,
        )

    @property
    def edition(self) -> str:
        try:
            accelerator = self._accelerator()
            name = accelerator.name if accelerator.proven else "untried"
            return f"qemu {_qemu.find().version}, kernel {_kernel.find().release}, {name}"
        except PaddockError:
            return ""

    def probe(self) -> str | None:
        if os.uname().machine != "x86_64":
            return f"virtual machines are x86_64 ones here, and this is {os.uname().machine}"
        try:
            _qemu.find()
            _kernel.find().chain()
            _mkfs()
            self._accelerator()
        except PaddockError as error:
            return f"{error.message} ({error.hint})"
        return super().probe()

    def checks(self) -> tuple[Check, ...]:
        why = self.probe()
        if why is not None:
            return (Check(area="level", name="microvm", status="missing", detail=why, fix=_remedy()),)
        how = f"{self.edition}: {self._accelerator().words}"
        return (Check(area="level", name="microvm", status="ok", detail=how, fix=None),)

    # what the base asks

    def instance(self, id: SandboxId, template: Template, incarnation: int) -> MicrovmInstance:
        return MicrovmInstance(self, id, template, incarnation)

    async def dress(self, plan: SandboxPlan, jail: JailPlan) -> JailPlan:
        if plan.protect:
            raise Unsupported(
                f"a virtual machine's own root could change {plan.protect[0]}, which the policy lets nobody change",
                hint="level='jail', or a policy whose files need no protection",
            )
        baked, made_of = await self._machine(plan)
        dressed = _dressed(_shares.moved(plan, jail), made_of, (baked,))
        (await self.trees()).allow(plan.tree, dressed.disk_bytes)  # its memory lies there as well
        return dressed

    async def orders(self, plan: SandboxPlan, jail: JailPlan) -> Orders:
        own = self.jail_plan(plan).env
        env = {name: value for name, value in own.items() if plan.template.env.get(name) != value}
        return _orders(await self._ingredients(plan), plan, env, boot=False)

    async def ready(self, plan: SandboxPlan, instance: VesselInstance) -> None:
        limits = plan.spec.limits
        renewal: dict[str, object] = {
            "op": "renew",
            "hostname": plan.hostname,
            "machine_id": uuid.uuid4().hex,
            "entropy": os.urandom(_ENTROPY_BYTES).hex(),
            "wall_clock": time.time(),
            "network": plan.exits,
            "limits": {
                "open_files": limits.open_files,
                "processes": limits.processes,
                "tmp_bytes": limits.tmp_mib * _MIB,
            },
        }
        if shares := _shares.shares(plan):
            renewal["files"] = shares
        answer = await instance.init_call(renewal, dict[str, Any])
        if answer["failed"].keys() - {"machine_id"}:  # an image may have no /etc
            raise InvalidState(f"the machine of {plan.id} was not renewed: {answer['failed']}", hint="this is a bug")

    async def exits(self, id: SandboxId, incarnation: int, *, make: bool = False) -> Exits | None:
        found = await super().exits(id, incarnation, make=make)
        if make and found is not None and (instance := await self.adopt(id)) is not None:
            try:
                await instance.init_call({"op": "renew", "network": True}, dict[str, Any])
            finally:
                await instance.aclose()
        return found

    # baking

    def _accelerator(self) -> _accelerator.Choice:
        return _accelerator.choose(self.directory, _programs())

    async def _machine(self, plan: SandboxPlan) -> tuple[str, Ingredients]:
        """The baked one for this plan; the first that is baked shows whether KVM boots anything here."""
        if self._accelerator().proven:
            made_of = await self._ingredients(plan)
            return await self._baked(plan, made_of), made_of
        async with self._trial:
            choice = self._accelerator()
            made_of = await self._ingredients(plan)
            if choice.proven:
                return await self._baked(plan, made_of), made_of
            try:
                baked = await self._baked(plan, made_of, trial=True)
            except PaddockError as error:
                made_of = await self._ingredients(plan, _accelerator.TCG)
                baked = await self._baked(plan, made_of)  # where this fails as well, it was not for KVM
                _accelerator.failed(self.directory, _programs(), error.message)
            else:
                _accelerator.booted(self.directory, _programs())
            return baked, made_of

    async def _baked(self, plan: SandboxPlan, made_of: Ingredients, *, trial: bool = False) -> str:
        loop = asyncio.get_running_loop()

        def boot(tree: str) -> None:
            asyncio.run_coroutine_threadsafe(self._bake(tree, made_of, plan, trial=trial), loop).result()

        return await asyncio.to_thread((await self.templates()).part, made_of.recipe(boot))

    async def _ingredients(self, plan: SandboxPlan, accelerator: str | None = None) -> Ingredients:
        if not (await self.trees()).overlay:
            raise Unsupported("virtual machines need a pool with layers", hint="paddock doctor --storage")
        templates = await self.templates()
        host = await asyncio.to_thread(templates.get, "host")
        kit = await self.kit()
        limits = plan.spec.limits
        processors = _qemu.processors(limits.cpus)
        accelerator = accelerator or self._accelerator().name
        native = accelerator == _accelerator.KVM
        machine = _qemu.Machine(memory_mib=limits.memory_mib, processors=processors, accelerator=accelerator)
        anybody = msgspec.structs.replace(plan, spec=msgspec.structs.replace(plan.spec, env={}), exits=False)
        streams: dict[str, object] = {name: f"port:paddock.{name}" for name in self.identities}
        return Ingredients(
            kernel=_kernel.find(),
            qemu=_qemu.find(),
            machine=machine,
            template=plan.template,
            limits=limits,
            kit=kit,
            host=host,
            whole=self.whole,
            guest=self.guest_config(anybody, self.jail_plan(anybody), streams),
            mkfs=_mkfs(),
            processor=_accelerator.processor() if native else "",
            boot_id=proc.boot_id() if native else "",
        )

    async def _bake(self, tree: str, made_of: Ingredients, plan: SandboxPlan, *, trial: bool) -> None:
        """Boots a machine in the tree, has it run something, so that it knows how, and leaves its state there."""
        own = msgspec.structs.replace(
            plan,
            id=SandboxId(mint(Noun.SANDBOX)),
            hostname="sandbox",
            tree=tree,
            deadline=proc.boottime() + _BAKING_SECONDS,
            incarnation=0,
            parent=None,
            trees=(),
            spec=msgspec.structs.replace(plan.spec, mounts=()),
            exits=False,
            protect=(),
        )
        jail = _dressed(await self.furnish(self.jail_plan(own)), made_of, ())
        # No backend takes it for one of its sandboxes.
        instance = await self.make(own, dataclasses.replace(jail, kind="oven"))
        assert isinstance(instance, MicrovmInstance)
        orders = _orders(made_of, own, {}, boot=True)
        if trial:
            orders = msgspec.structs.replace(orders, greeting_seconds=_TRIAL_SECONDS)
        try:
            async with asyncio.timeout(2 * _TRIAL_SECONDS if trial else None):
                await instance.embark(orders, self.identities)
                await instance.warm(_WARM)
                channel = (await instance.control()).open({"op": "freeze", "for_good": True})
                await channel.reply(dict)
        except TimeoutError:
            raise SandboxError("it greeted, and was not ready to be saved in time", hint="paddock doctor") from None
        finally:
            await asyncio.shield(self.start(self._put_out(instance)))

    async def _put_out(self, instance: VesselInstance) -> None:
        with contextlib.suppress(PaddockError):
            await instance.kill()
            await self.forget(instance.id)
        await instance.aclose()


class MicrovmInstance(VesselInstance):
    def __init__(self, backend: MicrovmBackend, id: SandboxId, template: Template, incarnation: int) -> None:
        super().__init__(backend, id, template, incarnation)
        self._environment: dict[str, str] | None = None
        self._trust = Trust(backend.directory, id)

    async def start(self, spec: ExecSpec, *, id: ExecId, background: bool) -> ExecHandle:
        """The guest was started for any sandbox: what is this one's own comes with each command."""
        if self._environment is None:
            self._environment = (await self.control_call({"op": "environment"}, _Environment)).env
        if fresh := self._trust.fresh():
            await self.init_call({"op": "renew", "trust": fresh}, dict[str, Any])
        if self._environment:
            spec = msgspec.structs.replace(spec, env={**self._environment, **spec.env})
        return await super().start(spec, id=id, background=background)

    async def warm(self, commands: tuple[tuple[str, ...], ...]) -> None:
        """What these need is in the machine's memory afterwards. One that is not there was not needed."""
        for argv in commands:
            with contextlib.suppress(PaddockError):
                handle = await self.start(ExecSpec(argv=argv), id=ExecId(mint(Noun.EXEC)), background=False)
                await handle.wait()

    @contextlib.asynccontextmanager
    async def frozen(self) -> AsyncGenerator[None]:
        """The machine stands, with its devices' state in its tree, and so does the jail around it."""
        channel = (await self.control()).open({"op": "freeze"})
        try:
            await channel.reply(dict)
            async with super().frozen():
                yield
        finally:
            channel.close()


class _Environment(msgspec.Struct, frozen=True):
    env: dict[str, str]


def _dressed(jail: JailPlan, made_of: Ingredients, baked: tuple[str, ...]) -> JailPlan:
    """Around the machine are this machine's own programs; of the template nothing but a view."""
    host = made_of.host
    return dataclasses.replace(
        jail,
        layers=(*baked, *host.layers),
        host_usr=host.host_usr,
        users=tuple(User(name=u.name, uid=u.uid, gid=u.gid, home=u.home) for u in host.users),
        default_user=host.default_user,
        workdir=host.workdir,
        env=dict(host.env),
        trees=(*jail.trees, made_of.tree()),
        open_files=max(jail.open_files, 4096),
        disk_bytes=jail.disk_bytes + made_of.limits.memory_mib * _MIB,
        devices=(KVM,) if made_of.machine.accelerator == _accelerator.KVM else (),
    )


def _orders(made_of: Ingredients, plan: SandboxPlan, env: dict[str, str], *, boot: bool) -> Orders:
    options: dict[str, Any] = {
        "place": PLACE,
        "argv": made_of.machine.command(made_of.qemu, BOOT if boot else None, ARGUMENTS),
        "streams": {name: number for name, number in _qemu.streams().items() if name in made_of.guest["streams"]},
        "descriptors": {"files": _qemu.FILES, "monitor": _qemu.MONITOR, "blocks": _qemu.BLOCKS},
        "stamp": made_of.stamp,
        "memory_bytes": made_of.machine.memory_mib * _MIB,
        "env": env,
        "exports": [] if boot else _shares.exports(plan),
    }
    if boot:
        options["make"] = made_of.disks()
    return Orders(course="microvm", options=options, greeting_seconds=_BAKING_SECONDS if boot else 60.0)


def _programs() -> tuple[str, str]:
    return (_qemu.find().stamp, _kernel.find().stamp)


def _mkfs() -> str:
    found = shutil.which("mke2fs", path="/usr/sbin:/sbin:/usr/bin")
    if found is None:
        raise LevelUnavailable("mke2fs is not there", hint=_qemu.PACKAGES)
    return found


def _remedy() -> str:
    try:
        _qemu.find()
        _mkfs()
    except PaddockError:
        return _qemu.PACKAGES
    return "tools/bootstrap levels"
