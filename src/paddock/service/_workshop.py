"""Workshops: short-lived sandboxes of the service's own, for work on trees that nobody may do on the host.

Nobody can name one: it has no row among the sandboxes. What comes out of it is an attacker's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from paddock.audit import AuditLog
from paddock.backends._base import Instance, SandboxPlan, TreeMount
from paddock.errors import PlatformError, SandboxDied
from paddock.model import ExecId, ExecResult, ExecSpec, Level, Limits, Noun, SandboxId, SandboxSpec, mint
from paddock.storage._base import Pool

from ._capture import Capture
from ._clock import Clock
from ._collect import Collector
from ._errand import errand
from ._gate import Entry
from ._needs import Need
from ._providers import Backends, Templates
from ._store import Store
from ._tasks import Tasks, in_thread

TEMPLATE = "host"
LIMITS = Limits(memory_mib=4096, disk_mib=1024, processes=256, tmp_mib=1024)
OUTPUT_BYTES = 16 << 20
SECONDS = 1800.0


class Workshop:
    """One that is open. Its commands run one after the other, as the template's own user."""

    def __init__(
        self, instance: Instance, done: list[dict[str, object]], *, root_user: bool = False, seconds: float = SECONDS
    ) -> None:
        self.instance, self._done, self._left = instance, done, seconds
        self.owner = "root" if root_user else None
        """Who may read and write all files of its trees."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        input: bytes | None = None,
        output_bytes: int = OUTPUT_BYTES,
        timeout_seconds: float = SECONDS,
    ) -> ExecResult:
        """All that it prints, which is at most `output_bytes` on each stream: with more, it is ended (Limit.OUTPUT).
        Commands share the seconds of the workshop."""
        began = time.monotonic()
        spec = ExecSpec(argv=tuple(argv), cwd=cwd, env=dict(env or {}), stdin=input is not None)
        out, err = Capture(2 * output_bytes, ""), Capture(2 * output_bytes, "")  # never full: nothing is put aside
        handle = await self.instance.start(spec, id=ExecId(id := mint(Noun.EXEC)), background=False)
        try:
            collector = Collector(handle, out, err, input=input, most_bytes=output_bytes)
            status = await collector.run(min(timeout_seconds, self._left))
        finally:
            self._left = max(0.0, self._left - (time.monotonic() - began))
            await handle.aclose()
        self._done.append({"argv": list(argv[:2]), "status": status})
        return ExecResult(id=ExecId(id), status=status, out=out.output(), err=err.output())

    async def stream(
        self,
        argv: Sequence[str],
        *,
        input: Iterable[bytes] | None = None,
        sink: Callable[[bytes], None] | None = None,
        user: str | None = None,
    ) -> bytes:
        """As `errand`, for what is larger than memory."""
        began = time.monotonic()
        try:
            said = await errand(
                self.instance, tuple(argv), user=user, input=input, sink=sink, timeout_seconds=self._left
            )
        finally:
            self._left = max(0.0, self._left - (time.monotonic() - began))
        self._done.append({"argv": list(argv[:2]), "status": "ok"})
        return said

    async def check(self, argv: Sequence[str], **options: object) -> bytes:
        """What it printed on stdout. PlatformError if it did not end with 0."""
        result = await self.run(argv, **options)  # type: ignore[arg-type]
        if not result.ok:
            limit = f", limit reached: {result.limit}" if result.limit else ""
            words = result.stderr.strip()[-600:]
            raise PlatformError(f"{argv[0]} ended with {result.exit_code}{limit} in a workshop: {words}")
        return result.out.head + result.out.tail


class Workshops:
    def __init__(
        self,
        *,
        store: Store,
        backends: Backends,
        pool: Callable[[], Pool],
        templates: Templates,
        tasks: Tasks,
        clock: Clock,
        audit: AuditLog,
    ) -> None:
        self._store, self._backends, self._pool, self._templates = store, backends, pool, templates
        self._tasks, self._clock, self._audit = tasks, clock, audit

    @asynccontextmanager
    async def open(
        self,
        trees: Sequence[TreeMount],
        entry: Entry | None,
        *,
        limits: Limits = LIMITS,
        seconds: float = SECONDS,
        command_seconds: float = SECONDS,
    ) -> AsyncGenerator[Workshop]:
        """While the block lasts, a workshop with `trees`; afterwards it is dead. `entry`: the action that needs it.
        `command_seconds`: what its commands may take, together.

        PlatformError: it died. What a backend raises that cannot make one.
        """
        backend = self._backends.choose(Level.JAIL)  # whatever sandboxes run in: it is the quickest to begin
        backend.capabilities.require("trees", backend.name)
        template = await asyncio.to_thread(self._templates.get, TEMPLATE)
        id = SandboxId(mint(Noun.WORKSHOP))
        plan = SandboxPlan(
            id=id,
            hostname="workshop",
            spec=SandboxSpec(template=TEMPLATE, limits=limits, ttl_seconds=seconds),
            template=template,
            tree=id,
            deadline=self._clock.boottime() + seconds,
            trees=tuple(trees),
        )
        done: list[dict[str, object]] = []
        self._store.execute("INSERT INTO workshops (id) VALUES (?)", (id,))
        try:
            limit = limits.disk_mib << 20
            await in_thread(self._pool().create, id, layers=template.layers, limit_bytes=limit)
            instance = await backend.create(plan)
            try:
                yield Workshop(instance, done, root_user=backend.capabilities.root_user, seconds=command_seconds)
            except SandboxDied as error:
                raise PlatformError(f"the workshop died: {error.message}", hint="paddock audit") from None
            finally:
                await self._tasks.finish(instance.aclose(), name=f"undo {id}")
        finally:
            await self._tasks.finish(self._end(id), name=f"undo workshop {id}")
            names = [tree.tree for tree in trees]
            self._audit.event("workshop", asked_by=entry and entry.number, workshop=id, trees=names, commands=done)

    def living(self) -> set[str]:
        return {id for (id,) in self._store.execute("SELECT id FROM workshops", ()).fetchall()}

    async def recover(self) -> None:
        """End those that the daemon before this one has left open."""
        for id in self.living():
            self._audit.event("workshop.orphan", workshop=id, message="the daemon that opened it died; removed")
            await self._end(SandboxId(id))

    def needs(self) -> Iterable[Need]:
        return [Need(id, id, "it is a workshop's own") for id in self.living()]

    async def _end(self, id: SandboxId) -> None:
        """Row last: until then the next daemon tries again."""
        for backend in self._backends.loaded():
            instance = await backend.adopt(id)
            if instance is not None:
                try:
                    await instance.kill()
                finally:
                    await instance.aclose()
                await backend.forget(id)
        await in_thread(self._pool().delete, id)
        self._store.execute("DELETE FROM workshops WHERE id = ?", (id,))
