"""The report: tables on a terminal, plain lines elsewhere, JSON on request."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from demo.run import Claim, Run


def show(run: Run, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"ok": run.ok, **asdict(run)}, indent=2))
    elif sys.stdout.isatty():
        _tables(run)
    else:
        _lines(run)


def _tables(run: Run) -> None:
    console = Console()
    steps = Table(title="What was run, milliseconds", title_justify="left", header_style="bold")
    for column in ("step", "in"):
        steps.add_column(column, no_wrap=True)
    for column in ("create", "exec", "exit"):
        steps.add_column(column, justify="right", no_wrap=True)
    steps.add_column("limit", no_wrap=True)
    steps.add_column("last line", overflow="ellipsis", no_wrap=True)
    for row in _rows(run):
        # Text, not a string: what comes from inside is shown as it is and never as markup.
        steps.add_row(*(Text(cell) for cell in row))
    claims = Table(title="What was claimed", title_justify="left", header_style="bold")
    claims.add_column("")
    claims.add_column("claim")
    claims.add_column("measured", overflow="ellipsis", no_wrap=True)
    for claim in run.claims:
        mark = Text("held", "green") if claim.held else Text("BROKEN", "bold red")
        claims.add_row(mark, Text(claim.text), Text(_printable(claim.detail)))
    console.print(steps, claims, Text(_summary(run)), sep="\n")


def _lines(run: Run) -> None:
    print(f"{'what was run, ms':<17}{'in':<8}{'create':>8}{'exec':>10}{'exit':>6}  {'limit':<11}last line")
    for name, where, create, execute, exit_code, limit, last in _rows(run):
        print(f"{name:<17}{where:<8}{create:>8}{execute:>10}{exit_code:>6}  {limit:<11}{last}")
    print()
    for claim in run.claims:
        print(of_claim(claim))
    print(_summary(run))


def of_claim(claim: Claim) -> str:
    """One line, while it runs and in the end."""
    return f"{'held' if claim.held else 'BROKEN':<7} {claim.text}  {_printable(claim.detail)}".rstrip()


def _rows(run: Run) -> list[tuple[str, str, str, str, str, str, str]]:
    return [
        (
            step.name,
            step.where,
            "" if step.create_ms is None else f"{step.create_ms:.1f}",
            f"{step.exec_ms:.1f}",
            str(step.exit_code),
            step.limit or "",
            _printable(step.output),
        )
        for step in run.steps
    ]


def _summary(run: Run) -> str:
    missing = f"not enforced here: {', '.join(run.not_enforced)}" if run.not_enforced else "all limits enforced"
    if run.not_tried:
        missing += f"; not tried for that: {', '.join(run.not_tried)}"
    verdict = "every claim held" if run.ok else "A CLAIM IS BROKEN"
    return f"level {run.level}, {missing}; {run.seconds:.1f} s; {verdict}"


def _printable(text: str) -> str:
    """Output of a sandbox must not drive the terminal."""
    return "".join(c if c.isprintable() else "�" for c in text)[:200]
