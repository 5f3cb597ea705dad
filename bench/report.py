"""What a benchmark found: sections of rows and ratios, as a table and as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.contest import POOL_DRIVER, ROOT, Record
from bench.figures import Ratio, ratio, summarize
from bench.worker import TOTAL

OUT = ROOT / "out" / "bench"


@dataclass(frozen=True)
class Row:
    """`values` in the section's unit. `part`: of the row above, whose whole it does not stand beside."""

    label: str
    values: Sequence[float]
    part: bool = False


@dataclass
class Section:
    """One benchmark. `ratios` by what they are of; `notes` are sentences."""

    name: str
    title: str
    unit: str = "ms"
    rows: list[Row] = field(default_factory=list[Row])
    ratios: dict[str, Ratio] = field(default_factory=dict[str, Ratio])
    notes: list[str] = field(default_factory=list[str])

    def add(self, record: Record, *, parts: bool = True) -> None:
        """Rows for the whole and its parts, in milliseconds; a note if there is nothing."""
        if record.failure is not None:
            done = f"stopped after {len(record.samples)} rounds" if record.samples else "not measured"
            self.notes.append(f"{record.name}: {done}: {record.failure}")
        if not record.samples:
            return
        label = f"{record.name} {record.version}" if record.version else record.name
        self.rows.append(Row(label, [1e3 * value for value in record.seconds()]))
        for part in record.parts if parts else ():
            if part != TOTAL:
                self.rows.append(Row(part, [1e3 * value for value in record.seconds(part)], part=True))

    def add_cpu(self, record: Record) -> None:
        """Processor time per repetition, and whose it was."""
        if not record.cpu:
            return
        self.rows.append(Row(f"{record.name}, processor time", _ms(record.cpu_rounds())))
        used = {part: _ms(record.cpu_rounds(part)) for part in record.cpu[0]}
        self.rows.extend(Row(part, values, part=True) for part, values in used.items() if any(values))
        if not record.exact:
            self.notes.append(f"{record.name}: no control group counts what runs inside; its processor time is more")

    def add_kernel(self, record: Record) -> None:
        """The kernel's threads meanwhile, per repetition."""
        values = [1e3 * used / len(block) for used, block in zip(record.kernel, record.samples, strict=True)]
        self.rows.append(Row(f"{record.name}, threads of the kernel", values))

    def compare(self, one: Record, others: Iterable[Record]) -> None:
        """Ratios of the whole, `one` above."""
        for other in others:
            if one.samples and other.samples and len(one.samples) == len(other.samples):
                self.ratios[f"{one.name} / {other.name}"] = ratio(one.rounds(), other.rounds())

    def data(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "unit": self.unit,
            "rows": [
                {"label": row.label, "part": row.part, "summary": asdict(summarize(row.values)), "values": row.values}
                for row in self.rows
                if row.values
            ],
            "ratios": {name: asdict(value) for name, value in self.ratios.items()},
            "notes": self.notes,
        }


def machine() -> dict[str, Any]:
    """What figures must not be quoted without."""
    return {
        "kernel": platform.release(),
        "processor": processor(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "uid": os.geteuid(),
        "load": os.getloadavg()[0],
        "pool": os.environ.get(POOL_DRIVER, "by probe"),
        "var_tmp": file_system(Path("/var/tmp")),
    }


def processor() -> str:
    """The model of this machine's processor, or its architecture."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return models[0].partition(": ")[2] if models else platform.machine()


def file_system(path: Path) -> str:
    """The type of the file system that holds `path`."""
    best = ("/", "unknown")
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, tail = line.partition(" - ")
        point = fields.split()[4]
        if path.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, tail.split()[0])
    return best[1]


def show(section: Section, console: Console) -> None:
    console.print(f"[bold]{section.name}[/bold]: {section.title}")
    table = Table(header_style="bold", box=None)
    table.add_column(section.unit)
    for column in ("median", "quartiles", "p95", "best", "n"):
        table.add_column(column, justify="right")
    for row in section.rows:
        if not row.values:
            continue
        s = summarize(row.values)
        figures = (figure(s.median), f"{figure(s.p25)} - {figure(s.p75)}", figure(s.p95), figure(s.best))
        table.add_row(
            f"  {row.label}" if row.part else row.label, *figures, str(s.count), style="dim" if row.part else ""
        )
    console.print(table)
    for name, value in section.ratios.items():
        console.print(f"  {name}: [bold]{value}[/bold]")
    for note in section.notes:
        console.print(f"  {note}", style="dim", markup=False)
    console.print()


def figure(value: float) -> str:
    """Format a value with the digits that matter."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3f}"


def _ms(rounds: Sequence[Sequence[float]]) -> list[float]:
    return [1e3 * value for value in chain.from_iterable(rounds)]
