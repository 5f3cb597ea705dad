"""Play histories: `python -m tests.simulation SEED [COUNT]`. One that fails prints the line that repeats it."""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Generator, Iterable, Iterator

if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is a part of a history
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])

from .daemon import machine
from .history import History, play
from .world import World

EACH = 50
"""Histories that one process plays. It collects no garbage: what they leave goes with the process."""


def main(arguments: list[str]) -> int:
    """`SEED COUNT` plays the histories SEED/0 to SEED/COUNT-1 until one fails, or with `--all` to the end. `SEED/N`
    plays that one, and says what happened in it. `SEED@ COUNT` plays SEED with a second death after 0, 1, ... steps."""
    seed, *others = (one for one in arguments if one != "--all")
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")  # of what dead daemons never awaited
    sys.unraisablehook = lambda _: None  # and of their clean-up, which the world refuses
    count, failed, told = 0, 0, hashlib.sha256()
    if others:
        joint = "" if seed.endswith("@") else "/"
        played = _many([f"{seed}{joint}{number}" for number in range(int(others[0]))])
    else:
        (world,) = _worlds([seed], keeps_trace=True)
        print("\n".join(world.trace))
        played = iter([_told(world)])
    for one, digest, violations in played:
        count += 1
        told.update(digest.encode())
        if violations:
            failed += 1
            print(f"{one} after {count} histories: {violations[0]}")
            print(f"  repeat it: python -m tests.simulation {one}", flush=True)
            if "--all" not in arguments:
                return 1
    seconds = sum(os.times()[:4])
    print(f"{count} histories, {failed} failed, {seconds:.1f} s of processors, {told.hexdigest()[:16]}")
    return 1 if failed else 0


def _many(seeds: list[str]) -> Iterator[tuple[str, str, list[str]]]:
    """The results in the order of `seeds`, from a process for each processor."""
    chunks = deque(seeds[at : at + EACH] for at in range(0, len(seeds), EACH))
    running: deque[tuple[int, int]] = deque()
    gc.freeze()
    try:
        while chunks or running:
            while chunks and len(running) < len(os.sched_getaffinity(0)):
                running.append(_start(chunks.popleft()))
            process, results = running[0]
            with open(results) as lines:
                yield from map(json.loads, lines)
            running.popleft()
            if os.waitpid(process, 0)[1]:
                raise RuntimeError("a process that played histories has died")
    finally:
        for process, _ in running:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _start(seeds: list[str]) -> tuple[int, int]:
    results, end = os.pipe()
    process = os.fork()
    if process:
        os.close(end)
        return process, results
    try:
        gc.disable()
        with open(end, "w") as lines:
            for world in _worlds(seeds):
                lines.write(json.dumps(_told(world)) + "\n")
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def _worlds(seeds: Iterable[str], *, keeps_trace: bool = False) -> Generator[World]:
    history: History | None = None

    def current() -> World:
        assert history is not None
        return history.world

    with machine(current):
        for seed in seeds:
            history = History(seed, keeps_trace=keeps_trace)
            yield play(history)


def _told(world: World) -> tuple[str, str, list[str]]:
    loop = world.loop
    return world.seed, f"{loop.steps} {loop.time()} {len(world.events)} {world.chance.random()}", world.violations


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
