"""Play histories: `python -m tests.simulation SEED [COUNT]`. One that fails prints the line that repeats it."""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import sys
import time
import warnings

if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is a part of a history
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])

from .daemon import machine
from .history import History, play

EACH = 50
"""Histories between two collections of what they leave."""


def main(arguments: list[str]) -> int:
    """`SEED COUNT` plays the histories SEED/0 to SEED/COUNT-1 until one fails, or with `--all` to the end. `SEED/N`
    plays that one, and says what happened in it."""
    seed, *others = (one for one in arguments if one != "--all")
    seeds = [f"{seed}/{number}" for number in range(int(others[0]))] if others else [seed]
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")  # of what dead daemons never awaited
    sys.unraisablehook = lambda _: None  # and of their clean-up, which the world refuses
    gc.disable()
    gc.freeze()
    began, failed, told = time.process_time(), 0, hashlib.sha256()
    histories: list[History] = []
    with machine(lambda: histories[0].world):
        for number, one in enumerate(seeds):
            histories[:] = [History(one)]
            world = play(histories[0])
            trace = "\n".join(world.trace)
            told.update(trace.encode())
            if not others:
                print(trace)
            if world.violations:
                failed += 1
                print(f"{one} after {number + 1} histories: {world.violations[0]}")
                print(f"  repeat it: python -m tests.simulation {one}", flush=True)
                if "--all" not in arguments:
                    return 1
            if number % EACH == 0:
                gc.collect()
    seconds, digest = time.process_time() - began, told.hexdigest()[:16]
    print(f"{len(seeds)} histories, {failed} failed, {seconds:.1f} s of a processor, {digest}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
