"""Burials, where the kernel does not let go at once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from paddock.linux import cgroups, pidfd, proc
from paddock.supervisor._running import Running
from paddock.supervisor._supervised import Supervised
from paddock.supervisor.records import Record, Records
from tests.orphans import wait_until


@pytest.fixture
def base() -> Generator[cgroups.Base]:
    made = cgroups.Base.open(f"paddock_test_{os.urandom(4).hex()}")
    yield made
    made.remove()


Add = Callable[..., Supervised]


@contextmanager
def yard_of_the_dead(
    directory: Path, groups: cgroups.Base | None = None, told: list[str] | None = None
) -> Generator[tuple[Running, Add]]:
    """An running, and what gives it a sandbox whose pid 1 is dead. The daemon is `told` of ends."""
    records = Records(os.open(directory, os.O_RDONLY | os.O_DIRECTORY))
    facts = {"spares": records.directory, "groups": groups, "slots": None, "signal": pidfd.send_signal}
    context = cast("Any", SimpleNamespace(records=records, **facts))
    running = Running(
        context, lambda event, record, **_: told.append(record.id) if told is not None else None, lambda: True
    )

    def add(id: str, deadline: float, group: cgroups.Group | None = None) -> Supervised:
        pid = os.posix_spawn("/bin/true", ["true"], {})  # vfork(2): the worker of pytest is large
        (directory / id).mkdir()
        record = Record(
            id=id,
            pid=pid,
            start=0,
            boot="b",
            slot=None,
            group=None,
            deadline=deadline,
            tree="t",
            template="",
            limits={},
        )
        running.add(sandbox := Supervised(record=record, pidfd=pidfd.open(pid), group=group))
        return sandbox

    yield running, add
    os.close(records.directory)


def test_deadlines_come_due_in_order_whatever_was_moved_or_died_meanwhile(tmp_path: Path) -> None:
    with yard_of_the_dead(tmp_path) as (running, add):
        a, b, c, d = (
            add(f"sb_{name}", deadline) for name, deadline in zip("abcd", (40.0, 20.0, 30.0, 10.0), strict=True)
        )
        assert running.next_deadline() == 10.0
        running.set_deadline(d, 50.0)
        running.set_deadline(a, 15.0)
        assert running.next_deadline() == 15.0
        running.reap(b)
        running.expire(30.0)
        assert [life.cause is not None for life in (a, c, d)] == [True, True, False]
        assert running.next_deadline() == 50.0
        for life in (a, c, d):
            running.reap(life)
        assert running.next_deadline() is None


def test_the_end_of_what_the_daemon_killed_is_written_if_that_daemon_goes_before_it_forgets(tmp_path: Path) -> None:
    with yard_of_the_dead(tmp_path) as (running, add):
        for name in ("sb_known", "sb_forgotten", "sb_late"):
            life = add(name, 1e12)
            if name != "sb_late":
                life.waiting.append(lambda: None)
            running.reap(life)
        records = running._context.records
        assert set(records.ended()) == {"sb_known", "sb_forgotten", "sb_late"}
        assert not (tmp_path / "sb_known.ended").exists()
        assert (tmp_path / "sb_late.ended").exists(), "of its end the daemon knows nothing"
        records.forget("sb_forgotten")
        records.write_kept()
        assert set(records.ended()) == {"sb_known", "sb_late"}
        assert (tmp_path / "sb_known.ended").exists()


def test_deadlines_of_the_dead_are_not_kept_for_ever(tmp_path: Path) -> None:
    with yard_of_the_dead(tmp_path) as (running, add):
        for n in range(120):
            running.reap(add(f"sb_{n}", 1e12))
        assert len(running._deadlines) < 100


def test_the_daemon_is_told_of_an_end_before_its_kill_is_answered(tmp_path: Path) -> None:
    """Else what it makes in the same place after the answer would be taken for the dead one."""
    said: list[str] = []
    with yard_of_the_dead(tmp_path, told=said) as (running, add):
        life = add("sb_a", 1e12)
        life.waiting.append(lambda: said.append("answer"))
        running.reap(life)
    assert said == ["sb_a", "answer"]


@pytest.mark.root
def test_a_group_that_does_not_get_empty_holds_up_nobody_and_goes_when_it_is(
    base: cgroups.Base, tmp_path: Path
) -> None:
    group = base.create("gr_test", cgroups.GroupLimits())
    with (
        yard_of_the_dead(tmp_path, base) as (running, add),
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as stubborn,
    ):
        for tree in base.trees:
            Path(tree.path, "gr_test", "cgroup.procs").write_text(str(stubborn.pid))
        running.reap(add("sb_x", 1e12, group))
        assert stubborn.poll() is None
        assert running.sandboxes == {}
        assert base.children() == {"gr_test"}
        assert running.next_removal() is not None
        running.remove_left(proc.boottime() + 10)
        assert base.children() == {"gr_test"}
        stubborn.communicate()

    def gone() -> bool:
        running.remove_left(proc.boottime() + 10)
        return not base.children()

    assert wait_until(gone)
    assert running.next_removal() is None


def test_what_a_supervisor_was_killed_over_writing_is_taken_away_by_the_next(tmp_path: Path) -> None:
    kept = {"sb_a.ended", "gateway.new"}
    for name in (*kept, ".sb_a.ended.new", "sb_b.ended.new"):
        (tmp_path / name).write_text("{}")
    with yard_of_the_dead(tmp_path) as (running, _):
        running.adopt()
    assert set(os.listdir(tmp_path)) == kept
