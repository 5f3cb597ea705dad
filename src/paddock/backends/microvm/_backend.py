"""The level `microvm`: a separate kernel for every sandbox, in QEMU, in a jail."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

from paddock.backends._checks import missing, ok
from paddock.backends._trees import directory_owners
from paddock.backends.base import Capabilities, Exits, SandboxPlan
from paddock.backends.guest import program
from paddock.backends.jail import SupervisorClient
from paddock.backends.microvm import _accelerator, _kernel, _qemu, _shares
from paddock.backends.microvm._bake import Ingredients
from paddock.backends.microvm._images import Images
from paddock.backends.microvm._qemu import PLACE, Machine
from paddock.backends.vmm import Orders, VmmBackend, VmmInstance, cores
from paddock.errors import FileError, LevelUnavailableError, PaddockError, SandboxError, UnsupportedError, logged
from paddock.linux import files, proc
from paddock.model import (
    Check,
    ExecSpec,
    Level,
    Limit,
    MakeDirectory,
    SandboxId,
    SetFileAttributes,
    StatFile,
    replace,
)
from paddock.storage.pool.memories import Memories
from paddock.supervisor.plan import KVM, JailPlan
from paddock.supervisor.plan import User as JailUser
from paddock.wire.guest import PartFlags as Part
from paddock.wire.guest import Renew

_MIB = 1 << 20
_BAKING_SECONDS = 600.0
_WARM_SECONDS = 30.0
_log = logging.getLogger("paddock")
_TRIAL_SECONDS = 30.0  # a machine that KVM runs greets within a few; most of it for a busy host
_ENTROPY_BYTES = 64
_KEPT = frozenset({Limit.OPEN_FILES, Limit.OUTPUT, Limit.TIME, Limit.TTL})
_MAY_FAIL = Part.MACHINE_ID | Part.HOSTS | Part.ABSENT  # an image may have no /etc; what is there is refused
_PARTS = Part.ENTROPY | Part.HOSTNAME | Part.LIMITS | Part.MAC_ADDRESS | Part.MACHINE_ID | Part.NETWORK | Part.CLOCK
_WARM_COMMAND = ("/bin/sh", "-c", "exec /bin/true")


class MicrovmInstance(VmmInstance):
    @contextlib.asynccontextmanager
    async def frozen(self) -> AsyncGenerator[None]:
        """Freeze the machine, with its devices' state in its tree, and the jail around it."""
        images = Images(Memories(await self._level.trees()))
        async with (
            self.copying,
            self.roused(),
            images.saving((await self._level.record(self.id)).tree, self._save),
            super().frozen(),
        ):
            yield

    def _save(self, name: str, fd: int) -> AbstractAsyncContextManager[None]:
        return self.saved(fds=(fd,), memory=name)


class MicrovmBackend(VmmBackend):
    name = "microvm"
    instance = MicrovmInstance
    level = Level.MICROVM
    # Translated code 128, stacks of threads 64, and a reserve, where only RLIMIT_DATA enforces the limit.
    extra_memory_mib = 512
    extra_processes = 64
    at_hand = False  # a machine that does nothing yet is to share as much of its memory as it can
    late_trees = True
    oom_score = 500
    tells = True

    def __init__(self, state_dir: Path, *, supervisor: SupervisorClient | None = None, for_tests: bool = False) -> None:
        super().__init__(state_dir, supervisor=supervisor, for_tests=for_tests)
        self._trial = asyncio.Lock()

    @property
    def root_user(self) -> bool:
        """Whether it has a root user: the machine's own, for every user of the host."""
        return True

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, enforced=_KEPT, watched=frozenset(), memory=True)

    def probe(self) -> str | None:
        if os.uname().machine != "x86_64":
            return f"virtual machines are x86_64 ones here, and this is {os.uname().machine}"
        try:
            _kernel.find(self.config.kernel).chain(_qemu.find().modules)
            _mkfs()
            self._accelerator()
        except PaddockError as error:
            return f"{error.message} ({error.hint})"
        return super().probe()

    def checks(self) -> tuple[Check, ...]:
        why = self.probe()
        if why is not None:
            return (missing("level", "microvm", why, self.remedy(why) or _remedy()),)
        choice = self._accelerator()
        name = choice.name if choice.proven else "untried"
        edition = f"qemu {_qemu.find().version}, kernel {_kernel.find(self.config.kernel).release}, {name}"
        slept = "what is paused keeps its memory; `paddock pause --to-disk` gives it back"
        return (
            ok("level", "microvm", f"{edition}: {choice.words}"),
            ok("microvm", "sleep", slept),
        )

    # interface of the base class

    async def build_plan(self, plan: SandboxPlan, jail: JailPlan) -> JailPlan:
        baked, made_of = await self._machine(plan)
        image = await (await self.images()).for_start(plan.tree, baked)
        dressed = _dressed(_shares.moved(plan, jail), made_of, (baked,) if image is None else (image, baked))
        (await self.trees()).allow(plan.tree, dressed.disk_bytes)  # its state lies there as well
        return dressed

    async def orders(self, plan: SandboxPlan, jail: JailPlan) -> Orders:
        image = await (await self.images()).of_state(plan.tree)
        env = self.own_environment(plan)
        return _orders(await self._ingredients(plan), plan, env, boot=False, memory=image)

    async def ready(self, plan: SandboxPlan, instance: VmmInstance) -> None:
        limits = plan.spec.limits
        parts = _PARTS
        if self.hosts_is_its_own(plan):
            parts |= Part.HOSTS
        if on_disk := _shares.on_disk(plan):
            parts |= Part.ABSENT
        renewal = Renew(
            parts=parts,
            online=int(plan.exits),
            open_files=limits.open_files,
            processes=limits.processes,
            tmp_bytes=limits.tmp_mib * _MIB,
            clock=time.time_ns(),
            absent=tuple(map(os.fsencode, on_disk)),
            entropy=os.urandom(_ENTROPY_BYTES),
            hostname=plan.hostname.encode(),
            hosts=plan.hostname.encode() if Part.HOSTS in parts else b"",
            mac_address=_own_address(),
            machine_id=uuid.uuid4().hex.encode(),
        )
        done = await instance.tell(renewal, may_fail=_MAY_FAIL)
        await asyncio.gather(*map(instance.order, _shares.shares(plan)))
        if on_disk and not done & Part.ABSENT:
            raise await _shares.unkept(on_disk, partial(_has_not, instance))

    async def rehearse(self, plan: SandboxPlan, instance: VmmInstance) -> None:
        """Renew it, and run a program of the host's: an emulator translates that code now, and not after the claim.

        The claim replaces every value. An image's programs don't run before there is a sandbox.
        """
        await self.ready(plan, instance)
        await super().rehearse(plan, instance)
        if plan.template.host_usr:
            await _warm(instance)

    async def become(self, plan: SandboxPlan, instance: VmmInstance) -> None:
        if exports := _shares.exports(plan):
            await (await instance.control()).call("show", exports=exports)
        await super().become(plan, instance)

    async def exits(self, id: SandboxId, instance_id: int, *, make: bool = False) -> Exits | None:
        found = await super().exits(id, instance_id, make=make)
        if make and found is not None and (instance := await self.adopt(id)) is not None:
            try:
                await instance.tell(Renew(parts=Part.NETWORK, online=1))
            finally:
                await instance.aclose()
        return found

    async def images(self) -> Images:
        return Images(Memories(await self.trees()))

    # baking

    def _programs(self) -> tuple[str, str]:
        return (_qemu.find().stamp, _kernel.find(self.config.kernel).stamp)

    def _accelerator(self) -> _accelerator.AcceleratorChoice:
        return _accelerator.choose(self.directory, self._programs(), self.config.accelerator)

    async def _machine(self, plan: SandboxPlan) -> tuple[str, Ingredients]:
        """Return the baked tree for this plan. The first bake shows whether KVM works here."""
        if self._accelerator().proven:
            made_of = await self._ingredients(plan)
            return await self._baked(plan, made_of), made_of
        async with self._trial:
            choice = self._accelerator()
            made_of = await self._ingredients(plan)
            if choice.proven:
                return await self._baked(plan, made_of), made_of
            _log.warning("trying KVM with the first virtual machine; this takes up to half a minute, once")
            try:
                baked = await self._baked(plan, made_of, trial=True)
            except PaddockError as error:
                made_of = await self._ingredients(plan, _accelerator.TCG)
                baked = await self._baked(plan, made_of)  # where this fails as well, it was not for KVM
                _accelerator.failed(self.directory, self._programs(), error.message)
                _log.info("no virtual machine boots with KVM here: %s", error.message)
            else:
                _accelerator.booted(self.directory, self._programs())
            return baked, made_of

    async def _baked(self, plan: SandboxPlan, made_of: Ingredients, *, trial: bool = False) -> str:
        boot = self.booting(lambda tree: self._bake(tree, made_of, plan, trial=trial))
        return await self.baked(made_of.recipe(boot))

    async def _ingredients(self, plan: SandboxPlan, accelerator: str | None = None) -> Ingredients:
        if not (await self.trees()).overlay:
            raise UnsupportedError("virtual machines need a pool with layers", hint="paddock doctor --storage")
        templates = await self.templates()
        host = await asyncio.to_thread(templates.get, "host")
        limits = plan.spec.limits
        accelerator = accelerator or self._accelerator().name
        native = accelerator == _accelerator.KVM
        machine = Machine(memory_mib=limits.memory_mib, processors=cores(limits.cpus), accelerator=accelerator)
        return Ingredients(
            kernel=_kernel.find(self.config.kernel),
            qemu=_qemu.find(),
            machine=machine,
            template=plan.template,
            limits=limits,
            host=host,
            whole=self.whole,
            guest=await asyncio.to_thread(program),
            mkfs=_mkfs(),
            processor=_accelerator.processor() if native else "",
            boot_id=proc.boot_id() if native else "",
        )

    async def _bake(self, tree: str, made_of: Ingredients, plan: SandboxPlan, *, trial: bool) -> None:
        """Boots a machine in the tree, has it run something, so that it knows how, and leaves its state there."""
        if not trial:
            _log.info("booting the first virtual machine of this template and these limits")
        own = self.unbaked(plan, tree, _BAKING_SECONDS)
        orders = _orders(made_of, own, {}, boot=True)
        if trial:
            orders = replace(orders, greeting_seconds=_TRIAL_SECONDS)
        async with self.oven(own, _dressed(await self.furnish(self.jail_plan(own)), made_of, ())) as instance:
            try:
                async with asyncio.timeout(2 * _TRIAL_SECONDS if trial else None):
                    await instance.start_vmm(orders)
                    await _furnish(instance, directory_owners(made_of.template))
                    await _warm(instance)
                    await (await instance.control()).call("freeze", seconds=None, for_good=True)
            except TimeoutError:
                words = "it greeted, and was not ready to be saved in time"
                raise SandboxError(words, hint="paddock doctor") from None


async def _furnish(machine: VmmInstance, directories: Mapping[str, tuple[int, int]]) -> None:
    """Make the directories that each sandbox has."""
    for path, (uid, gid) in directories.items():
        try:
            await machine.file(StatFile(sandbox=machine.id, path=path, user="0"))
        except FileError:
            await machine.file(MakeDirectory(sandbox=machine.id, path=path, user="0"))
            await machine.file(SetFileAttributes(sandbox=machine.id, path=path, user="0", uid=uid, gid=gid))


async def _has_not(machine: VmmInstance, path: str) -> bool:
    absent = Renew(parts=Part.ABSENT, absent=(os.fsencode(path),))
    return bool(await machine.tell(absent, may_fail=Part.ABSENT))


async def _warm(machine: VmmInstance) -> None:
    """Run a command, so that the machine's memory has its files.

    An image may have no shell. It is untrusted and may never end, and other sandboxes wait for this machine.
    """
    with logged("run a command for the image", machine.id):
        async with asyncio.timeout(_WARM_SECONDS):
            await machine.run(ExecSpec(argv=_WARM_COMMAND))


def _dressed(jail: JailPlan, made_of: Ingredients, baked: tuple[str, ...]) -> JailPlan:
    """Return the jail of the machine: the host's own programs, and only a view of the template."""
    host = made_of.host
    disk_bytes = jail.disk_bytes + made_of.machine.memory_bytes
    return jail._replace(
        layers=(*baked, *host.layers),
        host_usr=host.host_usr,
        users=tuple(JailUser(name=u.name, uid=u.uid, gid=u.gid, home=u.home) for u in host.users),
        default_user=host.default_user,
        workdir=host.workdir,
        env=dict(host.env),
        trees=(*jail.trees, made_of.tree()),
        open_files=max(jail.open_files, 4096),
        disk_bytes=disk_bytes,
        devices=(KVM,) if made_of.machine.accelerator == _accelerator.KVM else (),
    )


def _orders(made_of: Ingredients, plan: SandboxPlan, env: dict[str, str], *, boot: bool, memory: str = "") -> Orders:
    options: dict[str, Any] = {
        **made_of.qemu.options(made_of.machine, boot=boot),
        "place": PLACE,
        "stamp": made_of.stamp,
        "memory": memory,
        "exports": [] if boot else _shares.exports(plan),
    }
    if boot:
        options["make"] = made_of.disks()
    return Orders(driver="microvm", options=options, env=env, greeting_seconds=_BAKING_SECONDS if boot else 60.0)


def _own_address() -> bytes:
    """Return a MAC address: random, locally administered, unicast (IEEE 802: the first byte's lowest two
    bits).
    """
    return bytes((0x02,)) + os.urandom(5)


def _mkfs() -> str:
    found = files.find_program("mke2fs")
    if found is None:
        raise LevelUnavailableError("mke2fs is not there", hint=_qemu.PACKAGES)
    return found


def _remedy() -> str:
    try:
        _qemu.find()
        _mkfs()
    except PaddockError as error:
        return error.hint or _qemu.PACKAGES
    return "tools/bootstrap levels"
