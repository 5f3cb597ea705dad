"""`make bench`: what paddock costs, beside what else there is. `make bench ARGS="--only cycle"`, `ARGS=--peers`."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from pathlib import Path

from rich.console import Console

from bench import kept, plot
from bench.contest import POOL_DRIVER
from bench.plan import Plan
from bench.report import OUT, Section, machine, show

BENCHMARKS = {
    "cycle": "create + exec + destroy, back to back and ten a second, beside bubblewrap",
    "floor": "the same by a C program that makes only the system calls, and what each part of them costs",
    "warm": "a command in a sandbox that is there, beside subprocess.run",
    "steps": "where the time of a create goes",
    "crowd": "cycles a second with many callers, and the processor time of each",
    "shell": "`paddock run -- true`, and where its time goes",
    "daemon": "what a program pays to reach the daemon, and how the daemon bears a crowd",
    "streams": "1 GiB of stdout, a file out and a file in, beside dd",
    "fork": "fork, snapshot and rollback, with few files and with many; a hundred children",
    "levels": "a life, a warm command and a fork at each level, beside runsc, Podman and QEMU",
    "sleep": "pause, resume, and a command that wakes a sandbox",
    "bestof": "best of eight with a suite of two seconds, beside the ideal schedule",
    "checkout": "a new task on a cached repository until `git status` works, beside `git clone` of a mirror",
    "exits": "what a policy adds to a create",
    "outage": "how long a sandbox is offline after kill -9 of the gateway",
    "install": "pip install of 30 popular packages: directly, in a first sandbox, in a second",
    "wheel": "pip install of paddock itself into an empty environment",
    "egress": "requests, connections and bytes that one core's gateway carries",
    "proxies": "the gateway beside mitmproxy, and what both add to a request",
    "overhead": "computing, system calls, processes and files, inside and outside",
}
"""Each a module of this package with `measure(plan)`; in this order."""


def main() -> int:
    options = parse()
    if options.list:
        for name, what in BENCHMARKS.items():
            print(f"{name:10} {what}")
        return 0
    console = Console(stderr=options.json, width=None if sys.stdout.isatty() else 120)
    plan = Plan(repeat=options.rounds, with_peers=options.peers)
    if options.pool is not None:
        os.environ[POOL_DRIVER] = options.pool
    facts = machine()
    console.print("  ".join(f"{name} {value}" for name, value in facts.items()), style="dim")
    sections: list[Section] = []
    for name in options.only or BENCHMARKS:
        start = time.monotonic()
        for section in importlib.import_module(f"bench.{name}").measure(plan):
            show(section, console)
            sections.append(section)
            if options.keep:
                took = time.monotonic() - start
                kept.keep(facts, section.name, section.data(), took=took, load=os.getloadavg()[0])
        console.print(f"{name} took {time.monotonic() - start:.0f} s\n", style="dim")
    found = {"machine": facts, "benchmarks": {section.name: section.data() for section in sections}}
    report = json.dumps(found)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "bench.json").write_text(report)
    if options.keep:
        kept.PAGE.write_text(kept.page())
    for section in sections:
        plot.write(section, options.output)
    console.print(f"all values: {options.output / 'bench.json'}; a plot of each beside it", style="dim")
    if options.json:
        print(report)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="this one; may be given again")
    parser.add_argument("--peers", action="store_true", help="other people's sandboxes, too")
    parser.add_argument("--pool", choices=("btrfs", "overlay", "copy"), help="this driver, and not the best there is")
    parser.add_argument("--rounds", type=int, help="instead of each benchmark's own number")
    parser.add_argument("--json", action="store_true", help="all of it on stdout; the tables go to stderr")
    parser.add_argument("--output", type=Path, default=OUT, help="for bench.json and the plots")
    parser.add_argument("--keep", action="store_true", help="write summaries to bench/results too, by date")
    parser.add_argument("--list", action="store_true", help="which there are")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
