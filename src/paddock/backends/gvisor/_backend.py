"""Sandboxes of level `gvisor`: a vessel in which runsc's two halves run, gofer and sentry."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import msgspec

from paddock.backends._base import Capabilities, SandboxPlan
from paddock.backends.vessel import Orders, VesselBackend, VesselInstance
from paddock.errors import LevelUnavailable
from paddock.keeper._plan import JailPlan, Tree
from paddock.model import Check, ExecHandle, ExecId, ExecSpec, Level, Limit, SandboxId, Template
from paddock.storage._kit import COMMAND
from paddock.storage._porter import Porter
from paddock.storage._recipe import Entry, Progress, Recipe, write_manifest

from . import _probe
from ._bundle import cores, flags, served, specification

PLACE = "/.vessel"
"""Where the jail has runsc."""
_LINES = {"init": 0, "user": 1, "root": 2}  # the only descriptors that runsc passes on
_NOBODY = 65534
_MIB = 1 << 20
# The sentry and the gofer hold descriptors for each file in use, and ask for the limit once, at their start.
_OPEN_FILES = 65536
# What a process inside is for the kernel outside, which counts threads: a traced one with some, and those of the sentry
# that trace it. The sentry ends when it is refused one.
_THREADS_OF_ONE = 10
_MEMORY_FILE_BYTES = 1 << 50  # all memory inside is one sparse file, which grows by gigabytes


class GvisorBackend(VesselBackend):
    name = "gvisor"
    level = Level.GVISOR
    extra_memory_mib = 128
    extra_processes = 96

    def __init__(self, state_dir: Path, *, for_tests: bool = False) -> None:
        super().__init__(state_dir, for_tests=for_tests)
        self._home = state_dir  # where what was found out is written down
        self._found: _probe.Found | str | None = None
        self._runsc: str | None = None

    def probe(self) -> str | None:
        reason = super().probe()
        if reason is not None:
            return reason
        found = self._look()
        return found if isinstance(found, str) else None

    @property
    def edition(self) -> str:
        found = self._look()
        return "" if isinstance(found, str) else f"runsc {found.version} {found.platform}, {super().edition}"

    @property
    def capabilities(self) -> Capabilities:
        jail = super().capabilities
        # The sentry refuses processes above the ceiling, and nothing counts how often.
        found = self._found if isinstance(self._found, _probe.Found) else _probe.remembered(self._home)
        terminals = found is not None and found.terminals
        return msgspec.structs.replace(jail, pty=terminals, enforced=jail.enforced - {Limit.PROCESSES})

    def instance(self, id: SandboxId, template: Template, incarnation: int) -> GvisorInstance:
        return GvisorInstance(self, id, template, incarnation)

    def checks(self) -> tuple[Check, ...]:
        reason = super().probe()
        found = self._look() if reason is None else reason
        if isinstance(found, str):
            return (Check(area="level", name=self.name, status="missing", detail=found, fix=_probe.FIX),)
        detail = f"runsc {found.version}, platform {found.platform}, in a jail"
        if not found.terminals:
            detail += "; no terminals: this version's lack Ctrl-C, or don't say that their size has changed"
        if found.stats:
            return (Check(area="level", name=self.name, status="ok", detail=detail),)
        detail += (
            "; ls and stat of newer coreutils (Debian 12's, say) fail inside: this version refuses what they ask for"
        )
        return (Check(area="level", name=self.name, status="weak", detail=detail, fix=_probe.FIX_OLD),)

    async def dress(self, plan: SandboxPlan, jail: JailPlan) -> JailPlan:
        found = await asyncio.to_thread(self._look)
        if isinstance(found, str):
            raise LevelUnavailable(found, hint=_probe.FIX)
        if self._runsc is None:
            self._runsc = await asyncio.to_thread((await self.templates()).part, _recipe(found))
        return dataclasses.replace(
            jail,
            trees=(*jail.trees, Tree(name=self._runsc, target=PLACE, writable=False)),
            processes=plan.spec.limits.processes * _THREADS_OF_ONE + self.extra_processes,
            open_files=max(jail.open_files, _OPEN_FILES),
            file_bytes=_MEMORY_FILE_BYTES,
        )

    async def orders(self, plan: SandboxPlan, jail: JailPlan) -> Orders:
        found = self._look()
        assert not isinstance(found, str)
        limits = plan.spec.limits
        lines = {name: [_LINES[name]] * 2 for name in self.identities}
        config = self.guest_config(plan, jail, dict(lines))
        user = plan.template.user(None)
        assert user is not None
        spec = specification(
            argv=(*COMMAND, json.dumps(config)),
            hostname=plan.hostname,
            uid=0 if self.root_user else user.uid,
            limits=limits,
            occupied=(*(mount.target for mount in jail.mounts), *(tree.target for tree in jail.trees)),
        )
        options = {
            "runsc": f"{PLACE}/runsc",
            "flags": flags(found.platform, found.date, one_id=not self.root_user),
            "served": served(found.date),
            "spec": spec,
            "cpus": cores(limits.cpus),
            "memory_bytes": limits.memory_mib * _MIB,
            "sentry_uid": _NOBODY if self.root_user else None,
        }
        return Orders(course=self.name, options=options)

    def _look(self) -> _probe.Found | str:
        if not isinstance(self._found, _probe.Found):
            self._found = _probe.look(self._home)
        return self._found


class GvisorInstance(VesselInstance):
    def __init__(self, backend: GvisorBackend, id: SandboxId, template: Template, incarnation: int) -> None:
        super().__init__(backend, id, template, incarnation)
        self._gvisor = backend

    async def start(self, spec: ExecSpec, *, id: ExecId, background: bool) -> ExecHandle:
        if spec.pty is not None:
            self._gvisor.capabilities.require("pty", self._gvisor.name)
        return await super().start(spec, id=id, background=background)


def _recipe(found: _probe.Found) -> Recipe:
    """The tree with runsc: so it is there whatever a template holds, and stays when the machine's is replaced."""

    def fill(root: int, porter: Porter, progress: Progress) -> None:
        program = Path(found.program).read_bytes()
        write_manifest(root, porter, {"runsc": Entry("file", 0o755, program)})

    return Recipe(
        name="kit-runsc",
        facts=("1", found.version, *_probe.stamp(Path(found.program))),
        fill=fill,
        host_usr=False,
        env={},
    )
