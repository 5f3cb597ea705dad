"""`make bench`: create + first exec + destroy, in process, cycle by cycle beside the reference.

Both sides alternate within one loop, so that whatever the machine does to one it does to the other. A warm
`exec("true")` stands beside `subprocess.run(["true"])` in the same way. `out/bench.json` holds every timing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.figures import ratio, summarize
from bench.reference import Reference
from paddock import Sandbox

OUT = Path(__file__).parent.parent / "out"
Series = dict[str, list[float]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--warm-up", type=int, default=5, help="cycles that are not counted")
    parser.add_argument("--output", type=Path, default=OUT / "bench.json")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="paddock-bench-") as directory:
        os.environ["PADDOCK_STATE_DIR"] = f"{directory}/state"
        try:
            reference = Reference(Path(directory))
        except FileNotFoundError as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
        cycles = measure_cycles(reference, arguments.cycles, arguments.warm_up)
        warm = measure_warm(arguments.cycles)
        report = {
            "machine": {"kernel": platform.release(), "cpus": os.cpu_count(), "python": platform.python_version()},
            "uid": os.geteuid(),
            "reference": reference.name,
            "seconds": {**cycles, **warm},
            "milliseconds": {name: asdict(summarize(series)) for name, series in {**cycles, **warm}.items()},
            "ratios": {
                "cycle / reference": asdict(ratio(cycles["cycle"], cycles["reference"])),
                "warm exec / subprocess.run": asdict(ratio(warm["warm exec"], warm["subprocess.run"])),
            },
        }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=1))
    show(cycles, warm, reference.name)
    return 0


def measure_cycles(reference: Reference, count: int, warm_up: int) -> Series:
    series: Series = defaultdict(list)
    for number in range(-warm_up, count):
        parts = one_cycle()
        parts["reference"] = timed(reference.cycle)
        if number >= 0:
            for name, seconds in parts.items():
                series[name].append(seconds)
    return dict(series)


def one_cycle() -> dict[str, float]:
    start = time.perf_counter()
    sandbox = Sandbox.create(template="host", ttl_seconds=60)
    created = time.perf_counter()
    try:
        result = sandbox.exec("true")
        executed = time.perf_counter()
    finally:
        sandbox.kill()
    killed = time.perf_counter()
    assert result.ok, result
    return {
        "cycle": killed - start,
        "- create": created - start,
        "- first exec": executed - created,
        "- destroy": killed - executed,
    }


def measure_warm(count: int) -> Series:
    series: Series = {"warm exec": [], "warm exec, argv": [], "subprocess.run": []}
    with Sandbox.create(template="host", ttl_seconds=120) as sandbox:
        for number in range(-10, count):
            parts = (
                timed(lambda: sandbox.exec("true")),
                timed(lambda: sandbox.exec(["true"])),
                timed(lambda: subprocess.run(["true"], check=True)),
            )
            if number >= 0:
                for values, seconds in zip(series.values(), parts, strict=True):
                    values.append(seconds)
    return series


def timed(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def show(cycles: Series, warm: Series, reference: str) -> None:
    console = Console()
    table = Table(title="milliseconds", title_justify="left", header_style="bold")
    table.add_column("what")
    for column in ("median", "p95", "best"):
        table.add_column(column, justify="right")
    for name, series in {**cycles, **warm}.items():
        summary = summarize(series)
        label = reference if name == "reference" else name
        table.add_row(label, f"{summary.median:.2f}", f"{summary.p95:.2f}", f"{summary.best:.2f}")
    console.print(table)
    console.print(f"cycle / reference: {ratio(cycles['cycle'], cycles['reference'])}")
    console.print(f"warm exec / subprocess.run: {ratio(warm['warm exec'], warm['subprocess.run'])}")


if __name__ == "__main__":
    raise SystemExit(main())
