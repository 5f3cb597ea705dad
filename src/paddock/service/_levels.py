"""What this machine has of each level, and whether a sandbox of it runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from paddock.backends._base import Backend
from paddock.errors import PaddockError
from paddock.model import (
    Check,
    CreateSandbox,
    ExecSpec,
    KillSandbox,
    Level,
    LevelReport,
    Principal,
    RunExec,
    SandboxSpec,
)
from paddock.model.sandbox import RANK

from ._context import Perform

PROGRAM = "true"
_TTL_SECONDS = 600.0
_TRUE_SECONDS = 60.0
_log = logging.getLogger("paddock")


class Trial(NamedTuple):
    """One sandbox from its create to the end of `true`. `problem` is None if that worked."""

    seconds: float
    problem: str | None = None
    fix: str | None = None


async def run(
    backends: Sequence[Backend], levels: Sequence[Level], perform: Perform, principal: Principal
) -> dict[Level, Trial]:
    """Make a sandbox of each level that its backend calls available, as any caller would, and run `true` in it.

    `levels`, if there are any, are the only ones."""
    wanted = levels or [level for level in Level if level is not Level.PROCESS]
    return {
        backend.level: await _run(backend.level, perform, principal)
        for backend in backends
        if backend.level in wanted and backend.probe() is None
    }


async def _run(level: Level, perform: Perform, principal: Principal) -> Trial:
    _log.info("making a sandbox of level %s", level.value)
    start = time.monotonic()
    try:
        made = await perform(CreateSandbox(spec=SandboxSpec(level=level, ttl_seconds=_TTL_SECONDS)), principal)
        try:
            spec = ExecSpec(argv=(PROGRAM,), timeout_seconds=_TRUE_SECONDS)
            status = (await perform(RunExec(sandbox=made.id, spec=spec), principal)).status
        finally:
            await perform(KillSandbox(sandbox=made.id), principal)
    except PaddockError as error:
        return Trial(time.monotonic() - start, f"no sandbox of it runs: {error.message}", remedy(error))
    except Exception as error:  # a report that says so is worth more than none
        return Trial(time.monotonic() - start, f"no sandbox of it runs: {type(error).__name__}: {error}")
    seconds = time.monotonic() - start
    return Trial(seconds, f"`{PROGRAM}` ended with exit code {status.exit_code}" if status.exit_code else None)


def remedy(error: PaddockError) -> str | None:
    """Return what to do about the error, unless that is to ask for this very report."""
    return None if error.hint is None or error.hint.startswith("paddock doctor") else error.hint


def reports(
    backends: Sequence[Backend], checks: Sequence[Check], trials: Mapping[Level, Trial]
) -> tuple[LevelReport, ...]:
    """Describe every level that isolates, strongest first. `checks` are those of all `backends`."""
    told = {check.name: check for check in checks if check.area == "level"}
    isolating = [one for one in backends if one.level is not Level.PROCESS]
    found = [_report(one, told.get(one.level.value), trials.get(one.level)) for one in isolating]
    return tuple(sorted(found, key=lambda report: -RANK.index(Level(report.level))))


def _report(backend: Backend, check: Check | None, trial: Trial | None) -> LevelReport:
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
