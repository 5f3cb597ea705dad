"""Compares two revisions on this machine: `.venv/bin/python tools/ab.py main HEAD --bench cycle`.

`.` is what is checked out here.

Each runs from a separate worktree, with the benchmark of this checkout, and they take turns in blocks. The result is
the ratio of B to A, with the interval of resampled rounds. If 1 is inside, the run shows no difference.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench import crowd, cycle, exits, shell, streams, warm  # noqa: E402 - a script knows only its own directory
from bench.contest import Contender, Record, contest  # noqa: E402
from bench.figures import Ratio, ratio  # noqa: E402
from bench.worker import TOTAL  # noqa: E402


class Bench(NamedTuple):
    contender: Contender
    block: int
    interval: float | None = None


BENCHES = {
    "cycle": Bench(cycle.PADDOCK, 10),
    "paced": Bench(cycle.PADDOCK, 10, interval=0.1),
    "exits": Bench(exits.FENCED, 10, interval=0.1),
    "warm": Bench(warm.PADDOCK, 50),
    "crowd": Bench(replace(crowd.PADDOCK, arguments={"callers": 4}), 1),
    "shell": Bench(shell.PADDOCK, 2),
    "streams": Bench(streams.PADDOCK, 1),
}


def main() -> int:
    options = parse()
    bench = BENCHES[options.bench]
    with ExitStack() as stack:
        sides: list[Contender] = []
        for letter, revision in (("A", options.a), ("B", options.b)):
            tree = stack.enter_context(checked_out(revision))
            sides.append(replace(bench.contender, name=letter, paths=(tree / "src",), python=python_for(tree)))
        records = contest(sides, rounds=options.rounds, block=options.block or bench.block, interval=bench.interval)
    a, b = records["A"], records["B"]
    for record, revision, side in ((a, options.a, sides[0]), (b, options.b, sides[1])):
        if record.source is not None and not Path(record.source).is_relative_to(side.paths[0]):
            record.failure = f"{record.source} was measured, which is another revision"
        if record.failure is not None:
            print(f"{record.name} ({revision}): {record.failure}", file=sys.stderr)
            return 1
    ratios = compared(a, b)
    if options.json:
        print(json.dumps({name: asdict(value) for name, value in ratios.items()}))
    else:
        show(options, a, b, ratios)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("a", metavar="REV_A")
    parser.add_argument("b", metavar="REV_B")
    parser.add_argument("--bench", choices=BENCHES, default="cycle")
    parser.add_argument("--rounds", type=int, default=40, help="blocks of each (default 40)")
    parser.add_argument("--block", type=int, help="repetitions in a block")
    parser.add_argument("--json", action="store_true", help="the ratios, for programs")
    return parser.parse_args()


@contextmanager
def checked_out(revision: str) -> Generator[Path]:
    """Yield a tree of that revision, gone afterwards."""
    if revision == ".":
        yield ROOT
        return
    with tempfile.TemporaryDirectory(prefix="pab-", dir="/var/tmp") as directory:
        tree = Path(directory, "tree")
        git("worktree", "add", "--quiet", "--detach", str(tree), revision)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def git(*arguments: str) -> None:
    subprocess.run(["git", "-C", ROOT, *arguments], check=True)


def python_for(tree: Path) -> str:
    """Return this environment's Python, unless the revision locks other packages: then one is set up for it."""
    if (tree / "uv.lock").read_bytes() == (ROOT / "uv.lock").read_bytes():
        return sys.executable
    subprocess.run([tree / "tools" / "bootstrap"], check=True, stdout=sys.stderr)
    return str(tree / ".venv" / "bin" / "python")


def compared(a: Record, b: Record) -> dict[str, Ratio]:
    """B over A: seconds of the whole and of its parts by their medians, processor seconds by their means."""
    found = {part: ratio(b.rounds(part), a.rounds(part)) for part in a.parts}
    found["processor time"] = ratio(b.cpu_rounds(), a.cpu_rounds(), statistic=statistics.fmean)
    for part in a.cpu[0]:
        above, below = b.cpu_rounds(part), a.cpu_rounds(part)
        if min(chain.from_iterable((*above, *below))) > 0:
            found[f"- {part}"] = ratio(above, below, statistic=statistics.fmean)
    return found


def show(options: argparse.Namespace, a: Record, b: Record, ratios: dict[str, Ratio]) -> None:
    print(f"{options.bench}: A = {options.a}, B = {options.b}; {len(a.seconds())} of each, in {len(a.samples)} rounds")
    print(f"{'ms':20}{'A':>9}{'B':>9}  B / A")
    for name, value in ratios.items():
        if name in a.parts:
            pair = [1e3 * statistics.median(side.seconds(name)) for side in (a, b)]
        else:
            parts = () if name == "processor time" else (name.removeprefix("- "),)
            pair = [1e3 * statistics.fmean(chain.from_iterable(side.cpu_rounds(*parts))) for side in (a, b)]
        label = name if name in (TOTAL, "processor time") or name.startswith("- ") else f"- {name}"
        print(f"{label:20}{pair[0]:9.2f}{pair[1]:9.2f}  {value}{'' if value.differs else '  no difference shown'}")
    if not (a.exact and b.exact):
        print("no control group counts what runs inside: processor time is a lower bound")


if __name__ == "__main__":
    raise SystemExit(main())
