"""Which levels this machine has, what they take here, and which of them is taken when none is named."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from paddock.backends._base import Backend
from paddock.errors import InvalidArgument, PaddockError, PolicyDenied
from paddock.model import (
    Check,
    CreateSandbox,
    ExecSpec,
    KillSandbox,
    Level,
    LevelReport,
    MeasureLevels,
    Principal,
    RunExec,
    SandboxSpec,
)
from paddock.model.sandbox import RANK

from ._clock import Clock
from ._gate import Entry
from ._level_figures import Figure, LevelFigures
from ._nested import Perform
from ._providers import MAX_CREATE_MS, Backends, edition

MOST_ROUNDS = 100
_TTL_SECONDS = 600.0
_MEASURE = "paddock doctor --levels"


class Levels:
    def __init__(
        self, *, backends: Backends, figures: LevelFigures, perform: Perform, clock: Clock, owner: str
    ) -> None:
        self._backends, self._figures, self._perform = backends, figures, perform
        self._clock, self._owner = clock, owner
        self._failed: dict[Level, str] = {}

    def reports(self, checks: Sequence[Check]) -> tuple[LevelReport, ...]:
        """`checks` are those of all backends. Strongest first; what has no walls is no level that one would take."""
        told = {check.name: check for check in checks if check.area == "level"}
        found = [self._report(one, told.get(one.level.value)) for one in self._backends.all() if _isolates(one)]
        return tuple(sorted(found, key=lambda report: -RANK.index(Level(report.level))))

    def because(self, default: Level | None, reports: Sequence[LevelReport]) -> str:
        """Why `default` is what somebody gets who names none."""
        if self._figures.problem is not None:
            return self._figures.problem
        if default is None:
            return "no level that isolates is available here"
        stronger = [one for one in reports if RANK.index(Level(one.level)) > RANK.index(default)]
        passed = [why for one in stronger if (why := _passed_over(one))]
        return f"the strongest that is made within {MAX_CREATE_MS:.0f} ms here" + "".join(f"; {why}" for why in passed)

    async def measure(self, action: MeasureLevels, entry: Entry) -> None:
        """PolicyDenied but for the state directory's owner. LevelUnavailable: one that was named. What fails of the
        others is told by their report."""
        if entry.principal.id != self._owner:
            raise PolicyDenied(f"what is chosen here is for {self._owner} to measure", rule="own-records")
        if not 1 <= action.rounds <= MOST_ROUNDS:
            raise InvalidArgument(f"rounds={action.rounds} must be 1 to {MOST_ROUNDS}", field="rounds")
        named = [self._backends.choose(level) for level in dict.fromkeys(action.levels)]
        usable = named or [one for one in self._backends.all() if _isolates(one) and one.probe() is None]
        found: dict[Level, Figure] = {}
        for backend in usable:
            self._failed.pop(backend.level, None)
            try:
                found[backend.level] = await self._time(backend, action.rounds, entry.principal)
            except PaddockError as error:
                self._failed[backend.level] = str(error)
        self._figures.keep(found)
        entry.done({level.value: round(figure.create_ms, 1) for level, figure in found.items()})

    async def _time(self, backend: Backend, rounds: int, principal: Principal) -> Figure:
        await self._life(backend.level, principal)  # which may have to make a template
        creates, execs = zip(*[await self._life(backend.level, principal) for _ in range(rounds)], strict=True)
        return Figure(
            edition=edition(backend),
            create_ms=statistics.median(creates) * 1000,
            first_exec_ms=statistics.median(execs) * 1000,
            measured_at=self._clock.wall(),
        )

    async def _life(self, level: Level, principal: Principal) -> tuple[float, float]:
        start = time.perf_counter()
        made = await self._perform(CreateSandbox(spec=SandboxSpec(level=level, ttl_seconds=_TTL_SECONDS)), principal)
        try:
            created = time.perf_counter()
            await self._perform(RunExec(sandbox=made.id, spec=ExecSpec(argv=("true",))), principal)
            return created - start, time.perf_counter() - created
        finally:
            await self._perform(KillSandbox(sandbox=made.id), principal)

    def _report(self, backend: Backend, check: Check | None) -> LevelReport:
        refusal = backend.probe()
        figure = self._backends.figure(backend)
        failed = self._failed.get(backend.level)
        if failed is not None and refusal is None:
            status, detail = "weak", f"could not be measured: {failed}"
        elif check is not None:
            status, detail = check.status, check.detail
        else:
            status, detail = "ok" if refusal is None else "missing", refusal or ""
        return LevelReport(
            level=backend.level.value,
            backend=backend.name,
            status=status if refusal is None else "missing",
            detail=detail,
            fix=None if check is None else check.fix,
            create_ms=figure and figure.create_ms,
            first_exec_ms=figure and figure.first_exec_ms,
            measured_at=figure and figure.measured_at,
        )


def _isolates(backend: Backend) -> bool:
    return backend.level is not Level.PROCESS


def _passed_over(report: LevelReport) -> str | None:
    if report.status == "missing":
        return None
    if report.create_ms is None:
        return f"{report.level} is not measured: {_MEASURE}"
    return f"{report.level} takes {report.create_ms:.0f} ms"
