"""Processor time is read from where this machine keeps it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import account
from bench.account import Account
from tests import orphans
from tests.conftest import SandboxFactory

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("name", "content", "seconds"),
    [
        ("cpuacct.usage", "2500000000\n", 2.5),
        ("cpu.stat", "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n", 1.5),
    ],
)
def test_both_versions_of_control_groups_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str, seconds: float
) -> None:
    file = tmp_path / name
    file.write_text(content)
    monkeypatch.setattr(account, "_group_of", lambda state, supervisor: file)
    found = Account(tmp_path)
    assert found.read()["inside"] == seconds
    assert found.exact


def test_where_nothing_counts_what_is_inside_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account, "_group_of", lambda state, supervisor: None)
    found = Account(tmp_path)
    assert found.read()["inside"] == 0.0  # no supervisor, so it has waited for nobody
    assert not found.exact


def test_a_caller_without_sandboxes_has_no_supervisor() -> None:
    assert set(Account().read()) == {"caller", "children"}


_GROUP = Path(f"/sys/fs/cgroup/cpuacct/paddock_test_account_{os.getpid()}")
_RUN = """
import json, sys
from pathlib import Path
from bench.contest import Worker, contest
from bench.cycle import PADDOCK
group = Path(sys.argv[1])
(group / "cgroup.procs").write_text("0")
used = lambda: int((group / "cpuacct.usage").read_text()) * 1e-9
real, totals = Worker.block, []
def block(self, count, interval):
    before = used()
    answer = real(self, count, interval)
    totals.append(used() - before)
    return answer
Worker.block = block
record = contest([PADDOCK], rounds=2, block=30, warm_up=1)["paddock"]
print(json.dumps([sum(totals[1:]), sum(sum(cpu.values()) for cpu in record.cpu)]))
"""


@pytest.mark.root
def test_the_account_leaves_out_nothing_that_a_group_around_all_of_it_counts(sandbox: SandboxFactory) -> None:
    sandbox()  # skips with the reason where no sandbox can be had
    if not (_GROUP.parent / "cpuacct.usage").exists():
        pytest.skip("no hierarchy of version 1 counts processor time here")
    _GROUP.mkdir()
    try:
        run = subprocess.run([sys.executable, "-c", _RUN, _GROUP], capture_output=True, text=True, cwd=ROOT)
        assert run.returncode == 0, run.stderr
        all_of_it, accounted = json.loads(run.stdout)
        assert 0.97 * all_of_it < accounted <= 1.01 * all_of_it
    finally:
        orphans.wait_until(lambda: not _GROUP.joinpath("cgroup.procs").read_text())
        _GROUP.rmdir()
