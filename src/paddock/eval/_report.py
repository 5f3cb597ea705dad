"""What an evaluation found, for programs and for people."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ._trial import Outcome

_BAD = ("leaked", "reached")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`own`: the policy was paddock's. Then a twin that fails is a failure; of the user's policy it is a fact."""

    outcomes: tuple[Outcome, ...]
    own: bool
    state_dir: str

    @property
    def ok(self) -> bool:
        return any(one.verdict == "stopped" for one in self.outcomes) and not any(map(self._is_bad, self.outcomes))

    def _is_bad(self, one: Outcome) -> bool:
        return one.verdict in _BAD or (self.own and (one.twin_failed is not None or one.verdict == "unproven"))


def summary(report: Report) -> str:
    counts = {
        word: sum(one.verdict == word for one in report.outcomes)
        for word in ("stopped", *_BAD, "unproven", "not tried")
    }
    failed = sum(one.twin_failed is not None for one in report.outcomes)
    said = [f"{number} {word}" for word, number in counts.items() if number or word in ("stopped", "leaked")]
    how = "failed" if report.own else "are not possible under this policy"
    work = f"{failed} of the honest twins {how}" if failed else "each honest twin worked"
    return f"{', '.join(said)}; {work}"


def rows(report: Report) -> list[tuple[str, ...]]:
    return [(one.scenario, one.verdict, stopped_by(one), leaked(one), twin(one, report)) for one in report.outcomes]


HEADINGS = ("SCENARIO", "VERDICT", "STOPPED BY", "LEAKED", "TWIN")


def stopped_by(one: Outcome) -> str:
    rules = list(dict.fromkeys(stop.rule or stop.what.partition(";")[0] for stop in one.stops))
    more = f" and {len(rules) - 3} more" if len(rules) > 3 else ""
    return ", ".join(rules[:3]) + more


def leaked(one: Outcome) -> str:
    if one.leaks:
        return "; ".join(f"{leak.kind} {leak.name} to {leak.where}" for leak in one.leaks)
    return f"nothing, but {', '.join(one.reached[:2])} was reached" if one.reached else "nothing"


def twin(one: Outcome, report: Report) -> str:
    if one.twin_failed is None:
        return "ok"
    return "failed" if report.own else "not under this policy"


def as_json(report: Report) -> bytes:
    return msgspec.json.encode({"ok": report.ok, **msgspec.structs.asdict(report)})


def as_markdown(report: Report) -> str:
    policy = "paddock's own" if report.own else "the one that was given"
    lines = [
        "# Would it leak?",
        "",
        f"{summary(report)}. The policy is {policy}, revision `{next(iter(report.outcomes)).revision}`.",
        "",
        f"Records: `PADDOCK_STATE_DIR={report.state_dir} paddock audit show REF`.",
        "",
        f"| {' | '.join(heading.lower() for heading in HEADINGS)} |",
        f"|{'---|' * len(HEADINGS)}",
        *(f"| {' | '.join(_cell(value) for value in row)} |" for row in rows(report)),
    ]
    for one in report.outcomes:
        lines += [
            "",
            f"## {one.scenario}",
            "",
            f"Poisoned is {one.poisoned}; it {one.attempt}. Sandbox `{one.sandbox}`.",
        ]
        lines += ["", *(f"- tried `{_cell(said)}`" for said in one.tried)]
        lines += [
            f"- **leaked** {leak.kind} {leak.name} to {leak.where}, by {leak.rule} ({leak.record})"
            for leak in one.leaks
        ]
        lines += [f"- stopped: {_cell(stop.what)} (rule {stop.rule}, record `{stop.record}`)" for stop in one.stops]
        lines += [f"- twin: {one.twin}: {twin(one, report)}"]
        if one.twin_failed is not None:
            lines += ["", *(f"      {line}" for line in one.twin_failed.splitlines())]
    return "\n".join(lines) + "\n"


def write(report: Report, path: Path) -> None:
    """JSON if the name ends so, else Markdown."""
    path.write_bytes(as_json(report) if path.suffix == ".json" else as_markdown(report).encode())


def _cell(text: str) -> str:
    """What came from inside is a table's cell and nothing else."""
    printable = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
    return printable.replace("|", "\\|").replace("`", "'").replace("<", "&lt;")
