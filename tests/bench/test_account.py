"""Processor time is read from where this machine keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import account
from bench.account import Account


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
    monkeypatch.setattr(account, "_group_of", lambda state: file)
    found = Account(tmp_path)
    assert found.exact
    assert found.read()["inside"] == seconds


def test_where_nothing_counts_what_is_inside_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account, "_group_of", lambda state: None)
    found = Account(tmp_path)
    assert not found.exact
    assert found.read()["inside"] == 0.0  # no keeper, so it has waited for nobody


def test_a_caller_without_sandboxes_has_no_keeper() -> None:
    assert set(Account().read()) == {"caller", "children"}
