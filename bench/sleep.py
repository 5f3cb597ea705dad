"""Pause, resume and waking: how long each takes, and what a command in a sandbox that is awake takes beside that."""

from __future__ import annotations

import time

from bench.contest import Contender, contest
from bench.plan import Plan
from bench.report import Section
from bench.worker import TOTAL
from paddock import Sandbox


class Wake:
    """A paused sandbox in which something would run all the time: until its first command has answered."""

    def __init__(self, idle: bool = False) -> None:
        self._box = Sandbox.create(ttl=900, idle_timeout=600 if idle else None)
        self._box.start("while :; do sleep 0.01; done", background=True)

    def once(self) -> dict[str, float]:
        start = time.perf_counter()
        self._box.pause(force=True)
        paused = time.perf_counter()
        self._box.exec(["true"], check=True)
        woken = time.perf_counter()
        self._box.exec(["true"], check=True)
        warm = time.perf_counter()
        self._box.pause(force=True)
        again = time.perf_counter()
        self._box.resume()
        resumed = time.perf_counter()
        return {
            TOTAL: woken - paused,
            "pause": paused - start,
            "resume": resumed - again,
            "a command when awake": warm - woken,
        }

    def close(self) -> None:
        self._box.kill()


def measure(plan: Plan) -> list[Section]:
    section = Section("sleep", "a sandbox that stands still: from the call of a command to its answer; pause, resume")
    contenders = (
        Contender("wake", "bench.sleep:Wake", state=True),
        Contender("wake, with idle_seconds", "bench.sleep:Wake", {"idle": True}, state=True),
    )
    records = contest(contenders, rounds=plan.rounds(6), block=10)
    for record in records.values():
        section.add(record)
        section.add_cpu(record)
    section.notes.append("what is paused holds its memory")
    return [section]
