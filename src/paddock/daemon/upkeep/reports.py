"""Answer `doctor` and `audit`."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from paddock import __version__, audit, model
from paddock.backends.base import Backend
from paddock.daemon.context import Component, Context, Operation, Perform, handles
from paddock.daemon.sandboxes.images import ImageHandlers
from paddock.daemon.sandboxes.sandboxes import Sandboxes
from paddock.errors import InvalidArgumentError, NotFoundError, PaddockError, PolicyDeniedError
from paddock.model import Check, Diagnosis, ExecSpec, Level, LevelReport, Principal, SandboxSpec, replace
from paddock.model.config import FILE
from paddock.model.sandbox import RANK
from paddock.supervisor import layout

from .evidence import Evidence
from .garbage import measure

_POLL_SECONDS = 0.25
_AT_ONCE = 512
PROGRAM = "true"
_TTL_SECONDS = 600.0
_TRUE_SECONDS = 60.0
_log = logging.getLogger("paddock")


class AuditStream:
    """Read the audit log. Its own decision and outcome are in the log too."""

    def __init__(
        self,
        directory: Path,
        action: model.StreamAudit,
        choice: audit.RecordFilter,
        cursor: audit.Cursor,
        op: Operation,
    ) -> None:
        self._action, self._op = action, op
        self._stream = audit.Stream(directory, choice, cursor)
        self._lines = self._first(audit.ExportHeader(filtered=not choice.everything, resumed=action.cursor is not None))
        self._rest = b""
        self._told = 0
        self._closed = False
        op.defer()

    async def read(self, size: int = 65536) -> bytes:
        while not self._rest and not self._closed:
            self._rest = await asyncio.to_thread(self._more)
            if self._rest:
                break
            if not self._action.follow:
                await self.aclose()
                return b""
            await asyncio.sleep(_POLL_SECONDS)
            self._lines = self._told_of(self._stream.in_order())
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    async def aclose(self) -> None:
        self._closed = True
        self._op.done({"records": self._told})

    def _more(self) -> bytes:
        return b"".join(itertools.islice(self._lines, _AT_ONCE))

    def _first(self, heading: audit.ExportHeader) -> Iterator[bytes]:
        yield audit.heading_line(heading)
        if self._action.last is not None:
            kept = deque(self._stream.in_order(), maxlen=self._action.last) if self._action.last else ()
            if not self._action.last:
                self._stream.skip()
            yield from self._told_of(iter(kept))
        else:
            yield from self._told_of(self._stream.records())
        if not self._action.follow:
            # After the records, so that every signed one was read. Those before a cursor were sent before.
            yield from map(audit.head_line, self._stream.heads())
            yield audit.cursor_line(self._stream.cursor.text())

    def _told_of(self, records: Iterator[audit.SegmentLine]) -> Iterator[bytes]:
        prefixes: dict[str, bytes] = {}
        for found in records:
            if found.segment not in prefixes:
                prefixes[found.segment] = audit.record_prefix(found.segment)
            self._told += 1
            yield audit.record_line(prefixes[found.segment], found.raw)


_BEFORE_SECONDS = 60.0
"""A create is requested before its sandbox exists; the first one builds the template."""


class Reports(Component):
    def __init__(self, context: Context, sandboxes: Sandboxes, evidence: Evidence, images: ImageHandlers) -> None:
        super().__init__(context)
        self._sandboxes, self._evidence, self._image_room = sandboxes, evidence, images
        self._owner = f"local:{os.getuid()}"
        self._since = self._clock.wall()

    @handles(model.ListAudit)
    async def records(self, action: model.ListAudit, op: Operation) -> tuple[model.AuditRecord, ...]:
        """Return records of a known sandbox, by any of its names. The owner of the state directory sees everything.
        Other principals see their own requests, and what happened in their sandbox that they name."""
        if not 1 <= action.limit <= audit.MOST_RECORDS:
            raise InvalidArgumentError(f"limit={action.limit} must be 1 to {audit.MOST_RECORDS}", field="limit")
        names: tuple[str, ...] = ()
        me, own = op.principal.id, None
        if me != self._owner and action.principal not in (None, me):
            raise PolicyDeniedError(
                f"{me} sees its own records only, not those of {action.principal}", rule="own-records"
            )
        if action.sandbox is not None:
            with suppress(NotFoundError):
                row = self._sandboxes.find(action.sandbox, op)
                since = max(row.sandbox.created_at - _BEFORE_SECONDS, action.since or 0.0)
                action = replace(action, sandbox=row.id, since=since)
                own = row.id
                names = () if row.sandbox.spec.name is None else (row.sandbox.spec.name,)
        eyes = None if me == self._owner else audit.Visibility(principal=me, sandbox=own)
        return await asyncio.to_thread(audit.read_records, self._audit.directory, action, names, eyes=eyes)

    @handles(model.StreamAudit)
    async def stream(self, action: model.StreamAudit, op: Operation) -> AuditStream:
        if op.principal.id != self._owner:
            raise PolicyDeniedError(f"the log is for {self._owner} alone", rule="own-records")
        if action.last is not None and not 0 <= action.last <= audit.MOST_RECORDS:
            raise InvalidArgumentError(f"last={action.last} must be 0 to {audit.MOST_RECORDS}", field="last")
        names: tuple[str, ...] = ()
        if action.sandbox is not None:
            names = (action.sandbox,)
            with suppress(NotFoundError):
                row = self._sandboxes.find(action.sandbox, op)
                names = (row.id, *names, *filter(None, [row.sandbox.spec.name]))
        if not action.follow and action.last is None:
            await asyncio.to_thread(self._evidence.sign)
        choice = audit.RecordFilter(sandboxes=names, tag=action.tag, since=action.since)
        cursor = audit.Cursor() if action.cursor is None else audit.read_cursor(action.cursor)
        return AuditStream(self._audit.directory, action, choice, cursor, op)

    @handles(model.Diagnose)
    async def diagnose(self, action: model.Diagnose, op: Operation) -> Diagnosis:
        backends, trials = self._backends.all(), dict[Level, _Trial]()
        if action.run:
            if op.principal.id != self._owner:
                raise PolicyDeniedError(f"sandboxes for a report are for {self._owner} to make", rule="own-records")
            trials = await _try_levels(backends, action.levels, self._perform, op.principal)
        checks: list[Check] = []
        for backend in backends:
            checks += await asyncio.to_thread(self._tried, backend)
        levels = await asyncio.to_thread(_levels, backends, checks, trials)
        failed = {level.level for level in levels if level.status == "missing"}
        checks = [
            check
            for check in checks
            if check.area != "level"  # `levels` says more of them
            and not (check.status == "ok" and check.area in failed)  # nothing of it has run
        ]
        checks += await asyncio.to_thread(self._storage)
        checks += await asyncio.to_thread(self._image_room.checks)
        report = await asyncio.to_thread(audit.verify, self._audit.directory)
        status, fix = ("ok", None) if report.ok else ("missing", "paddock audit verify")
        checks.append(Check(area="audit", name="log", status=status, detail=report.problem or _told(report), fix=fix))
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._since))
        detail = f"pid {os.getpid()}, paddock {__version__}, since {since}, of {self._state_dir}"
        checks += (
            _fine("daemon", detail),
            _fine("database", f"{self._store.path}: survives kill -9 of its writers"),
            await asyncio.to_thread(_packages, self._state_dir / layout.PACKAGES),
        )
        return Diagnosis(
            checks=tuple(checks),
            default_level=self._config.level.value,
            state_dir=str(self._state_dir),
            levels=levels,
            config_file=str(self._state_dir / FILE),
            config=self._config.shown(),
        )

    @handles(model.GetAuditStatement)
    async def statement(self, action: model.GetAuditStatement, op: Operation) -> model.AuditStatement:
        return await self._evidence.statement(self._sandboxes.find(action.sandbox, op), op)

    def _tried(self, backend: Backend) -> tuple[Check, ...]:
        """Try the backend, also what it has never tried here, in the pool too."""
        with ExitStack() as work:
            with suppress(PaddockError):  # `_storage` says why the pool fails
                work.enter_context(self._pool().working())
            return backend.checks()

    def _storage(self) -> tuple[Check, ...]:
        try:
            return self._pool().checks()
        except Exception as error:
            detail, fix = (error.message, _remedy(error)) if isinstance(error, PaddockError) else (str(error), None)
            return (Check(area="storage", name="pool", status="missing", detail=detail, fix=fix),)


class _Trial(NamedTuple):
    """One sandbox from its create to the end of `true`. `problem` is None if that worked."""

    seconds: float
    problem: str | None = None
    fix: str | None = None


async def _try_levels(
    backends: Sequence[Backend], levels: Sequence[Level], perform: Perform, principal: Principal
) -> dict[Level, _Trial]:
    """Make a sandbox of each level that its backend calls available, as any caller would, and run `true` in it.

    `levels`, if there are any, are the only ones."""
    wanted = levels or [level for level in Level if level is not Level.PROCESS]
    return {
        backend.level: await _try(backend.level, perform, principal)
        for backend in backends
        if backend.level in wanted and backend.probe() is None
    }


async def _try(level: Level, perform: Perform, principal: Principal) -> _Trial:
    _log.info("making a sandbox of level %s", level.value)
    start = time.monotonic()
    try:
        created = await perform(model.CreateSandbox(spec=SandboxSpec(level=level, ttl_seconds=_TTL_SECONDS)), principal)
        try:
            spec = ExecSpec(argv=(PROGRAM,), timeout_seconds=_TRUE_SECONDS)
            status = (await perform(model.RunExec(sandbox=created.id, spec=spec), principal)).status
        finally:
            await perform(model.KillSandbox(sandbox=created.id), principal)
    except PaddockError as error:
        return _Trial(time.monotonic() - start, f"no sandbox of it runs: {error.message}", _remedy(error))
    except Exception as error:  # a report that says so is worth more than none
        return _Trial(time.monotonic() - start, f"no sandbox of it runs: {type(error).__name__}: {error}")
    seconds = time.monotonic() - start
    return _Trial(seconds, f"`{PROGRAM}` ended with exit code {status.exit_code}" if status.exit_code else None)


def _remedy(error: PaddockError) -> str | None:
    """Return what to do about the error, unless that is to ask for this very report."""
    return None if error.hint is None or error.hint.startswith("paddock doctor") else error.hint


def _levels(
    backends: Sequence[Backend], checks: Sequence[Check], trials: Mapping[Level, _Trial]
) -> tuple[LevelReport, ...]:
    """Describe every level that isolates, strongest first. `checks` are those of all `backends`."""
    by_name = {check.name: check for check in checks if check.area == "level"}
    isolating = [backend for backend in backends if backend.level is not Level.PROCESS]
    found = [_level(one, by_name.get(one.level.value), trials.get(one.level)) for one in isolating]
    return tuple(sorted(found, key=lambda report: -RANK.index(Level(report.level))))


def _level(backend: Backend, check: Check | None, trial: _Trial | None) -> LevelReport:
    refusal = backend.probe()
    status, detail, fix = ("ok", refusal or "", None) if check is None else (check.status, check.detail, check.fix)
    if trial is not None and trial.problem is not None:
        status, detail, fix = "missing", trial.problem, trial.fix
    return LevelReport(
        level=backend.level.value,
        backend=backend.name,
        status=status if refusal is None else "missing",
        detail=detail,
        fix=fix,
        seconds=None if trial is None else trial.seconds,
    )


def _fine(name: str, detail: str) -> Check:
    return Check(area="state", name=name, status="ok", detail=detail)


def _packages(directory: Path) -> Check:
    """Return what the gateway keeps of registries."""
    number, size = measure(directory)
    detail = f"{number} files, {size >> 20} MiB, for sandboxes that install what others have"
    return _fine("package cache", detail if number else "empty")


def _told(report: model.AuditReport) -> str:
    signed = f"{report.signed} of them signed" if report.heads else "none of them signed yet"
    return f"{report.records} records in {report.segments} segments, {signed}"
