"""Anything in any order, and kill -9 of a service or the supervisor in the middle of it: every synced byte is found
again, nothing is left over, and the records agree with the disk."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from paddock.supervisor import layout
from tests.conftest import live_sandboxes, supervisors
from tests.orphans import wait_until
from tests.soak.served import Served, content

Files = dict[str, str]
"""Digests by path, below /workspace."""

MOST_BOXES = 8
MOST_SPACES = 3
CUTS = st.sampled_from([None, None, None, "service", "service", "supervisor"])
DELAYS = st.integers(0, 60)
WHICH = st.integers(0, 99)
"""Of those that are there, by number: what may be drawn must not depend on what was cut off."""
SIZES = st.sampled_from([0, 1, 4096, 100_000, 3_000_000])


class NothingIsLost(RuleBasedStateMachine):
    """The model: what is in each sandbox and each snapshot. What was cut off may have happened or not; which of the two
    is asked afterwards, and has to be one of the two."""

    def __init__(self, state_dir: Path, services: list[Served]) -> None:
        super().__init__()
        self._state_dir, self._services = state_dir, services
        self._files: dict[str, Files] = {}
        self._shots: dict[str, Files] = {}
        self._spaces: dict[str, Files] = {}
        """What is in the workspaces that no living sandbox has, by name."""
        self._over: dict[str, str] = {}
        """The workspace that a living sandbox has."""
        self._with_workspace: set[str] = set()
        """Sandboxes and snapshots that have a workspace, be it a copy of their own."""
        self._number = 0

    # ---- what is done

    @rule(cut=CUTS, delay=DELAYS, who=st.integers(0, 1))
    def create(self, cut: str | None, delay: int, who: int) -> None:
        self._create(None, {}, cut, delay, who)

    @rule(which=WHICH, cut=CUTS, delay=DELAYS, who=st.integers(0, 1))
    def create_from_snapshot(self, which: int, cut: str | None, delay: int, who: int) -> None:
        shot = _pick(self._shots, which)
        if shot is not None:
            self._create(shot, self._shots[shot], cut, delay, who)

    @rule(which=WHICH, cut=CUTS, delay=DELAYS, who=st.integers(0, 1))
    def open_workspace(self, which: int, cut: str | None, delay: int, who: int) -> None:
        new = len(self._spaces) + len(self._over) < MOST_SPACES
        name = (
            f"task{self._next()}" if new else _pick({one: {} for one in (*self._spaces, *self._over.values())}, which)
        )
        assert name is not None
        answer = self._ask(who, cut, delay, "open", name=name)
        if answer is None or "error" in answer:
            self._value("open", name=name)
        if new:
            self._spaces[name] = {}

    @rule(which=WHICH, cut=CUTS, delay=DELAYS, who=st.integers(0, 1))
    def create_over(self, which: int, cut: str | None, delay: int, who: int) -> None:
        name = _pick(self._spaces, which)
        if name is not None:
            self._create(None, self._spaces[name], cut, delay, who, workspace=name)

    @rule(which=WHICH, who=st.integers(0, 1))
    def create_over_one_that_is_taken(self, which: int, who: int) -> None:
        box = _pick({one: {} for one in self._over}, which)
        if box is not None:
            name = f"box{self._next()}"
            answer = self._services[who].ask("create", name=name, snapshot=None, workspace=self._over[box])
            assert answer.get("error") == "invalid_state", answer

    @rule(which=WHICH, cut=CUTS, delay=st.integers(0, 300), who=st.integers(0, 1))
    def evict(self, which: int, cut: str | None, delay: int, who: int) -> None:
        name = _pick(self._spaces, which)
        if name is not None:
            self._ask(who, cut, delay, "evict", name=name)

    @rule(
        n=WHICH, name=st.sampled_from("abc"), size=SIZES, seed=st.integers(0, 99), cut=CUTS, delay=DELAYS,
        who=st.integers(0, 1),
    )  # fmt: skip
    def write(self, n: int, name: str, size: int, seed: int, cut: str | None, delay: int, who: int) -> None:
        box = _pick(self._files, n)
        if box is None:
            return
        after = {**self._files[box], f"./{name}": hashlib.sha256(content(size, seed)).hexdigest()}
        answer = self._ask(who, cut, delay, "write", id=box, path=name, size=size, seed=seed)
        if answer is not None and "value" in answer:
            self._files[box] = after
        else:
            self._files[box] = self._one_of(box, self._files[box], after)

    @rule(n=WHICH, size=SIZES, cut=CUTS, delay=DELAYS, who=st.integers(0, 1))
    def write_and_sync(self, n: int, size: int, cut: str | None, delay: int, who: int) -> None:
        box = _pick(self._files, n)
        if box is None:
            return
        path = f"synced{self._next()}"
        answer = self._ask(who, cut, delay, "run", id=box, path=path, size=size)
        if answer is not None and "value" in answer:
            self._files[box][f"./{path}"] = answer["value"]
            return
        now = self._look(box)
        half = now.pop(f"./{path}", None)  # as far as the command came; and it may come further
        assert now == self._files[box]
        if half is not None:
            assert wait_until(lambda: self._steady(box), seconds=30)
            self._files[box] = self._look(box)

    @rule(n=WHICH, count=st.integers(1, 3), cut=CUTS, delay=DELAYS, who=st.integers(0, 1))
    def fork(self, n: int, count: int, cut: str | None, delay: int, who: int) -> None:
        box = _pick(self._files, n)
        if box is None or len(self._files) + count > MOST_BOXES:
            return
        answer = self._ask(who, cut, delay, "fork", id=box, count=count)
        if answer is not None and "value" in answer:
            born = answer["value"]
            assert len(born) == count
        else:
            born = [id for id, one in self._living().items() if id not in self._files and one["origin"] == box]
        for id in born:
            self._files[id] = dict(self._files[box])
            self._same_kind(box, id)

    @rule(n=WHICH, cut=CUTS, delay=DELAYS, who=st.integers(0, 1))
    def snapshot(self, n: int, cut: str | None, delay: int, who: int) -> None:
        box = _pick(self._files, n)
        if box is None or len(self._shots) >= MOST_BOXES:
            return
        answer = self._ask(who, cut, delay, "snapshot", id=box)
        if answer is not None and "value" in answer:
            made = [answer["value"]]
        else:
            made = [id for id in self._value("snapshots") if id not in self._shots]
        for id in made:
            self._shots[id] = dict(self._files[box])
            self._same_kind(box, id)

    @rule(n=WHICH, which=WHICH, cut=CUTS, delay=DELAYS, who=st.integers(0, 1))
    def rollback(self, n: int, which: int, cut: str | None, delay: int, who: int) -> None:
        box, shot = _pick(self._files, n), _pick(self._shots, which)
        if box is None or shot is None:
            return
        if (box in self._with_workspace) != (shot in self._with_workspace):
            answer = self._services[who].ask("rollback", id=box, snapshot=shot)
            assert answer.get("error") == "invalid_state", answer
            return
        answer = self._ask(who, cut, delay, "rollback", id=box, snapshot=shot)
        if answer is not None and "value" in answer:
            self._files[box] = dict(self._shots[shot])
            return
        assert wait_until(lambda: self._value("list")[box]["state"] != "restoring", seconds=60)
        now = self._value("list")[box]
        if now["state"] == "running":
            self._files[box] = self._one_of(box, self._files[box], self._shots[shot])
        else:  # the snapshot is whole, and that is what counts
            assert (now["state"], cut) == ("failed", "supervisor"), now
            assert now["reason"]
            self._end(box, self._shots[shot])

    @rule(n=WHICH, cut=CUTS, delay=DELAYS, who=st.integers(0, 1))
    def kill(self, n: int, cut: str | None, delay: int, who: int) -> None:
        box = _pick(self._files, n)
        if box is None:
            return
        answer = self._ask(who, cut, delay, "kill", id=box)
        if (answer is None or "error" in answer) and box in self._living():
            seen = self._services[0].ask("files", id=box)  # the supervisor may be at it still
            assert seen.get("error") == "sandbox_died" or seen["value"] == self._files[box], seen
            assert self._value("kill", id=box) == "killed"
        self._end(box)

    @rule(which=WHICH, cut=CUTS, delay=DELAYS, who=st.integers(0, 1))
    def delete_snapshot(self, which: int, cut: str | None, delay: int, who: int) -> None:
        shot = _pick(self._shots, which)
        if shot is None:
            return
        answer = self._ask(who, cut, delay, "delete_snapshot", id=shot)
        if (answer is None or "error" in answer) and shot in self._value("snapshots"):
            self._value("delete_snapshot", id=shot)
        del self._shots[shot]

    @rule(cut=CUTS, delay=DELAYS, who=st.integers(0, 1))
    def gc(self, cut: str | None, delay: int, who: int) -> None:
        answer = self._ask(who, cut, delay, "gc")
        for id in (*self._files, *self._shots):
            assert answer is None or id not in answer.get("value", ())

    @rule(n=WHICH)
    def look(self, n: int) -> None:
        box = _pick(self._files, n)
        if box is not None:
            assert self._look(box) == self._files[box]

    # ---- what holds in the end

    def teardown(self) -> None:
        try:
            for box, files in self._files.items():
                assert self._look(box) == files, box
            assert set(self._living()) == set(self._files)
            assert set(self._value("snapshots")) == set(self._shots)
            for shot, files in self._shots.items():
                from_it = self._value("create", name=f"again{self._next()}", snapshot=shot, workspace=None)
                assert self._look(from_it) == files, shot
                self._value("kill", id=from_it)
            for name, files in self._spaces.items():
                assert self._look_into(name) == files, name
            for service in self._services:
                service.close()
            self._value("sweep")
            assert self._value("check") == []
            for box in tuple(self._files):
                assert self._value("kill", id=box) == "killed"
                self._end(box)
            for name, files in self._spaces.items():
                assert self._look_into(name) == files, name
                self._value("delete_workspace", name=name)
            for shot in tuple(self._shots):
                self._value("delete_snapshot", id=shot)
            assert self._value("gc") == [], "there was nothing left to collect"
            assert self._value("check") == []
            assert wait_until(lambda: not live_sandboxes(self._state_dir))
            assert not list((self._state_dir / layout.RUN).iterdir())
        finally:
            # After a failure too: the next ones begin with nothing.
            for id, one in self._services[0].ask("list").get("value", {}).items():
                if one["state"] not in ("killed", "failed"):
                    self._services[0].ask("kill", id=id)
            for id in self._services[0].ask("snapshots").get("value", ()):
                self._services[0].ask("delete_snapshot", id=id)
            for name in self._services[0].ask("workspaces").get("value", ()):
                self._services[0].ask("delete_workspace", name=name)
            for service in self._services:
                service.close()

    # ---- how

    def _create(
        self,
        snapshot: str | None,
        files: Files,
        cut: str | None,
        delay: int,
        who: int,
        workspace: str | None = None,
    ) -> None:
        if len(self._files) >= MOST_BOXES:
            return
        name = f"box{self._next()}"
        answer = self._ask(who, cut, delay, "create", name=name, snapshot=snapshot, workspace=workspace)
        if answer is not None and "value" in answer:
            id = answer["value"]
        else:
            id = next((id for id, one in self._living().items() if one["name"] == name), None)
        if id is None:
            return
        self._files[id] = dict(files)
        if snapshot is not None:
            self._same_kind(snapshot, id)
        if workspace is not None:
            self._with_workspace.add(id)
            self._over[id] = workspace
            del self._spaces[workspace]

    def _same_kind(self, source: str, copy: str) -> None:
        if source in self._with_workspace:
            self._with_workspace.add(copy)

    def _end(self, box: str, *perhaps: Files) -> None:
        """It is dead; what was in its workspace stays there, or, `perhaps`, something else."""
        files, name = self._files.pop(box), self._over.pop(box, None)
        if name is not None:
            now = self._look_into(name) if perhaps else files
            assert now in (files, *perhaps)
            self._spaces[name] = now

    def _look_into(self, space: str) -> Files:
        """By a sandbox over it."""
        box = self._value("create", name=f"look{self._next()}", snapshot=None, workspace=space)
        files = self._look(box)
        assert self._value("kill", id=box) == "killed"
        return files

    def _ask(self, who: int, cut: str | None, delay: int, op: str, **arguments: Any) -> dict[str, Any] | None:
        """The answer. None: it was cut off. An error is one only where something was killed."""
        service = self._services[who]
        if cut is None:
            answer = service.ask(op, **arguments)
            assert "value" in answer, (op, arguments, answer)
            return answer
        service.send(op, **arguments)
        time.sleep(delay / 1000)  # where it is hit is chance
        if cut == "service":
            service.kill()
            answer = service.answer(60)
        else:
            killed = supervisors(self._state_dir)
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            answer = service.answer(90)
            assert wait_until(lambda: not set(killed) & set(supervisors(self._state_dir)))
            assert answer is not None, f"{op} {arguments} hangs after the supervisor was killed"
        note(f"{op} cut off by kill of the {cut} after {delay} ms: {answer}")
        return answer

    def _value(self, op: str, **arguments: Any) -> Any:
        answer = self._services[0].ask(op, **arguments)
        assert "value" in answer, (op, arguments, answer)
        return answer["value"]

    def _living(self) -> dict[str, Any]:
        def settled() -> bool:
            return all(one["state"] not in ("creating", "restoring") for one in self._value("list").values())

        assert wait_until(settled, seconds=60), self._value("list")
        return {id: one for id, one in self._value("list").items() if one["state"] == "running"}

    def _look(self, box: str) -> Files:
        return self._value("files", id=box)

    def _steady(self, box: str) -> bool:
        first = self._look(box)
        time.sleep(0.05)
        return self._look(box) == first

    def _one_of(self, box: str, *wanted: Files) -> Files:
        now = self._look(box)
        assert now in wanted
        return now

    def _next(self) -> int:
        self._number += 1
        return self._number


def _pick(those: dict[str, Files], number: int) -> str | None:
    return list(those)[number % len(those)] if those else None


def run(state_dir: Path, **options: Any) -> None:
    services = [Served(state_dir), Served(state_dir)]
    machine: Callable[[], RuleBasedStateMachine] = lambda: NothingIsLost(state_dir, services)  # noqa: E731
    chosen = settings(
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],  # where it is hit is chance: a failure is not made smaller by trying again
        print_blob=False,
        **options,
    )
    try:
        run_state_machine_as_test(machine, settings=chosen)
    finally:
        for service in services:
            service.close()


@pytest.mark.slow  # every time, the simulation
def test_a_few_interleavings_lose_nothing(state_dir: Path) -> None:
    run(state_dir, max_examples=2, stateful_step_count=25, derandomize=True)


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
def test_a_thousand_interleavings_lose_nothing(state_dir: Path) -> None:
    run(state_dir, max_examples=int(os.environ.get("PADDOCK_INTERLEAVINGS", "1000")), stateful_step_count=30)
