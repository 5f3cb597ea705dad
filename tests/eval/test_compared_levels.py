"""Levels side by side: each attack gets through where there is no wall, none where there is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paddock.client import default_transport
from paddock.errors import InvalidArgumentError, LevelUnavailableError
from paddock.eval import levels
from paddock.eval._attacks import ATTACKS, Verdict, attack, bait
from paddock.supervisor import layout

# What an ordinary user may do to himself on any kernel; the others also depend on its settings.
OPEN = {
    *("host-file", "host-file-by-proc", "host-shared-memory", "host-environment", "host-process-seen"),
    *("host-process-killed", "host-loopback", "datagram", "abstract-socket", "named-socket", "ruling-sockets"),
}


def attacked(level: str, state: Path) -> tuple[Verdict, ...]:
    from paddock import Sandbox

    with bait([state / layout.SUPERVISOR_SOCKET]) as host, Sandbox.create(level=level) as sandbox:
        return attack(sandbox, host)


def test_each_attack_is_one_where_there_is_no_wall(shared_state: Path) -> None:
    through = {one.attack for one in attacked("process", shared_state) if one.verdict == "through"}
    assert through >= OPEN
    assert through & {"keyctl", "fsopen", "open_tree", "unshare", "userfaultfd"}, "no call of the kernel's got through"


def test_none_gets_through_the_jail_and_all_are_tried(shared_state: Path) -> None:
    verdicts = attacked("jail", shared_state)
    assert [one for one in verdicts if one.verdict != "stopped"] == []
    assert len(verdicts) == len(ATTACKS)


def test_nothing_is_left_of_what_lured(tmp_path: Path) -> None:
    before = dict(os.environ)
    with bait() as host:
        told = host.bait
        assert Path(told.file).read_text() == Path(told.shared_memory).read_text() == host.value
        assert host.process_lives()
    assert not host.process_lives()
    assert (Path(told.file).parent.exists(), Path(told.shared_memory).exists()) == (False, False)
    assert dict(os.environ) == before


def test_a_comparison_has_a_figure_or_its_reason_for_each_step_and_is_shown_in_each_way(
    shared_state: Path, tmp_path: Path
) -> None:
    found = levels.compare(["process", "jail"], rounds=1, transport=default_transport())
    walls = {one.level: {figure.name: figure for figure in one.figures} for one in found.levels}
    assert set(walls["jail"]) >= {
        "create",
        "first exec",
        "exec",
        "fork",
        "pause",
        "resume",
        "kill",
        "file in",
        "file out",
        "computing",
    }
    assert all(figure.values or figure.why for of_level in walls.values() for figure in of_level.values())
    assert walls["jail"]["fork"].values
    assert "doesn't support" in walls["process"]["fork"].why
    table = levels.rows(found)
    assert {len(row) for row in table} == {len(levels.headings(found))} == {3}
    assert table[-1][2] == f"0 of {len(ATTACKS)}"
    for name in ("report.json", "report.md"):
        levels.write(found, tmp_path / name)
    assert json.loads((tmp_path / "report.json").read_text())["levels"][1]["level"] == "jail"
    assert "got through: host-file" in (tmp_path / "report.md").read_text()


def test_what_cannot_be_compared_is_refused_before_anything_is_made(shared_state: Path, tmp_path: Path) -> None:
    with pytest.raises(LevelUnavailableError, match="'wasm' is not available here: no backend"):
        levels.compare(["wasm"])
    for wrong in ({"names": ["strong"]}, {"names": ["jail"], "rounds": 0}):
        with pytest.raises(InvalidArgumentError):
            levels.compare(**wrong)  # type: ignore[arg-type]
    argv = [sys.executable, "-m", "paddock", "bench", "--level", "jail", "-o", str(tmp_path / "report.txt")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, "not the name of a report" in done.stderr) == (125, True)
