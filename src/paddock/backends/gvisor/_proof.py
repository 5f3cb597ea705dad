"""The trial of KVM: a sandbox must run on it before a real one does. paddock stores the result.

It starts one as usual in a jail, saves it, restores it, and runs a program. A program alone (`_trial`) would prove
less: the device may answer each question, and hang later.
"""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING

from paddock.backends._trees import scratch_tree
from paddock.backends.base import SandboxPlan
from paddock.backends.vmm import nobodys
from paddock.errors import PaddockError, SandboxError
from paddock.linux import proc
from paddock.model import SandboxId, SandboxSpec, replace
from paddock.storage.pool.trees import WAITING

from . import _probe
from ._platforms import KVM

if TYPE_CHECKING:
    from ._backend import GvisorBackend

GREETING_SECONDS = 30.0
"""A guest greets within one second. The rest is for a busy host."""
_LIFE_SECONDS = 120.0
_NAMES = re.compile(r" of (sb|wv)_\w+| (sb|wv)_\w+")  # of what was made for the trial


async def settle(backend: GvisorBackend, found: _probe.FoundRunsc) -> _probe.FoundRunsc:
    """Decide the platform for certain: KVM, or the one of `found`, with the reason.

    A failure on both proves nothing about KVM. If the settings name KVM, this raises it. Otherwise this process
    continues with `found`, and the next one tries again.
    """
    kvm: _probe.FoundRunsc | str = replace(found, platform=KVM, beside=found.platform, tries_kvm=False, without="")
    try:
        await _live(backend, kvm)
    except PaddockError as error:
        words = _NAMES.sub("", error.message)
        try:
            await _live(backend, found)
        except PaddockError:
            if backend.config.gvisor_platform is not None:
                raise
            return replace(found, tries_kvm=False)
        kvm = f"no sandbox has lived on it: {words}"
    return await asyncio.to_thread(_probe.settled, backend.directory, found, kvm)


async def _live(backend: GvisorBackend, found: _probe.FoundRunsc) -> None:
    """Run the trial. Its exception says what failed."""
    templates = await backend.templates()
    name = f"{WAITING}{os.urandom(8).hex()}"
    plan = SandboxPlan(
        id=SandboxId(name),
        hostname="trial",
        spec=nobodys(SandboxSpec()),
        template=await asyncio.to_thread(templates.get, "host"),
        tree=name,
        deadline=proc.boottime() + _LIFE_SECONDS,
    )
    async with scratch_tree(await backend.trees(), name, plan.template, plan.spec.limits):
        jail = await backend.dressed(plan, await backend.furnish(backend.jail_plan(plan)), found, must_bake=True)
        plan = replace(plan, deadline=proc.boottime() + _LIFE_SECONDS)  # that took its time
        jail = jail._replace(kind="oven", deadline=plan.deadline)  # `living` leaves it out
        orders = replace(await backend.orders(plan, jail, found), greeting_seconds=GREETING_SECONDS)
        instance = await backend.start_vmm(plan, jail, orders)
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                await backend.rehearse(plan, instance)
        except TimeoutError:
            raise SandboxError("a program in it has not ended in time", hint="paddock doctor") from None
        finally:
            await asyncio.shield(backend.start(backend.put_out(instance)))
