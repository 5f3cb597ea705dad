"""What a policy adds to a create: exits, certificates, a door of the gateway's; beside a sandbox without one."""

from __future__ import annotations

import time

from bench.contest import Contender, contest
from bench.plan import Plan
from bench.report import Section
from bench.worker import TOTAL
from paddock import Sandbox

FENCED = Contender("with a policy", "bench.exits:Create", {"policy": True}, state=True)
FREE = Contender("without", "bench.exits:Create", {"policy": False}, state=True)
_POLICY = {"egress": {"allow": [{"host": "example.com"}, {"host": "*.example.org", "methods": ["GET"]}]}}


class Create:
    """A sandbox until it is there. The gateway runs, as it does from the first policy on."""

    def __init__(self, policy: bool) -> None:
        self._policy = _POLICY if policy else None
        self._neighbour = Sandbox.create(policy=self._policy, ttl=900)

    def once(self) -> dict[str, float]:
        start = time.perf_counter()
        sandbox = Sandbox.create(policy=self._policy)
        there = time.perf_counter()
        sandbox.exec(["true"], check=True)
        executed = time.perf_counter()
        sandbox.kill()
        end = time.perf_counter()
        return {TOTAL: there - start, "first exec": executed - there, "kill": end - executed}

    def close(self) -> None:
        self._neighbour.kill()


def measure(plan: Plan) -> list[Section]:
    section = Section("exits", "create, ten a second: with a policy and without")
    records = contest([FENCED, FREE], rounds=plan.rounds(8), block=10, interval=0.1)
    fenced, free = records.values()
    for record in records.values():
        section.add(record)
        section.add_cpu(record)
    section.compare(fenced, [free])
    return [section]
