"""What is done with a sandbox, or a spare, whose pid 1 dies at that very moment: it is dead, and nothing is broken."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from paddock.linux import pidfd
from paddock.linux.undo import UndoStack
from paddock.supervisor import _jail
from paddock.supervisor._errors import Died, Gone, Steps, died_of
from paddock.supervisor._serve import Supervisor
from tests.supervisor.test_plan import plan
from tests.supervisor.test_running import yard_of_the_dead


@pytest.mark.parametrize("has_exits", [True, False])
def test_exits_of_the_dead_are_not_known(tmp_path: Path, has_exits: bool) -> None:
    with yard_of_the_dead(tmp_path) as (running, add):
        life = add("sb_x", 0.0)
        assert pidfd.wait(life.pidfd)
        life.record.exits = has_exits
        context = cast("Any", running._context)
        context.root_mode = True
        supervisor = cast(
            "Any", SimpleNamespace(_running=running, _context=context, _sandbox=lambda id, instance_id: life)
        )
        with pytest.raises(Gone):
            Supervisor.do_exits(supervisor, cast("Any", None), "sb_x", 0, make=True)
        running.reap(life)


def test_a_spare_that_died_while_it_was_looked_at_is_tried_again_with_another() -> None:
    with subprocess.Popen(["true"]) as child:
        fd = pidfd.open(child.pid)
        try:
            assert pidfd.wait(fd)
            steps = Steps()
            spare = SimpleNamespace(pid=child.pid, pidfd=fd, slot=None, undo=UndoStack())
            pending = SimpleNamespace(
                steps=steps,
                plan=plan(),
                spare=spare,
                agent_pid=child.pid,
                root=os.stat("/"),
            )
            context = SimpleNamespace(own_namespaces={}, base=lambda slot: None)
            with pytest.raises(Died):
                _jail.check(cast("Any", context), cast("Any", pending))
        finally:
            os.close(fd)


def test_only_of_the_dead_it_is_said_that_they_died() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        fd = pidfd.open(child.pid)
        try:
            failures = (OSError(22, "x"), FileNotFoundError(2, "x"), ValueError("x"))
            assert not any(died_of(error, fd) for error in failures)
            child.send_signal(signal.SIGKILL)
            assert died_of(failures[0], fd), "it is waited for a moment"
            assert pidfd.wait(fd)
            assert all(died_of(error, fd) for error in failures)
        finally:
            os.close(fd)
