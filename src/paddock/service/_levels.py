"""What this machine has of each level."""

from __future__ import annotations

from collections.abc import Sequence

from paddock.backends._base import Backend
from paddock.model import Check, Level, LevelReport
from paddock.model.sandbox import RANK


def reports(backends: Sequence[Backend], checks: Sequence[Check]) -> tuple[LevelReport, ...]:
    """Describe every level that isolates, strongest first. `checks` are those of all `backends`."""
    told = {check.name: check for check in checks if check.area == "level"}
    found = [_report(one, told.get(one.level.value)) for one in backends if one.level is not Level.PROCESS]
    return tuple(sorted(found, key=lambda report: -RANK.index(Level(report.level))))


def _report(backend: Backend, check: Check | None) -> LevelReport:
    refusal = backend.probe()
    known = Check(area="level", name="", status="ok", detail=refusal or "") if check is None else check
    return LevelReport(
        level=backend.level.value,
        backend=backend.name,
        status=known.status if refusal is None else "missing",
        detail=known.detail,
        fix=known.fix,
    )
