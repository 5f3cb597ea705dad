"""Every record is of a kind that is published, and has the fields that its schema says."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import paddock
from paddock.audit import AuditLog
from paddock.model import Decision, ExecSpec, Principal, RunExec
from tests.audit.record_schema import wrong
from tools.record_kinds import DOOR, EGRESS, EVENTS, schema

SOURCE = Path(paddock.__file__).parent


def first_words(calls: set[str]) -> Iterator[str]:
    """The first argument of every call of a method that is called so, where it is written there."""
    for room in ("audit", "gateway", "daemon"):
        for path in (SOURCE / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in calls
                    and node.args
                    and isinstance(node.args[0], ast.Constant)
                    and isinstance(node.args[0].value, str)
                    and re.fullmatch(r"[a-z]+(\.[a-z]+)?", node.args[0].value)
                ):
                    yield node.args[0].value


def test_every_event_in_the_sources_is_published_and_the_reverse() -> None:
    assert {
        *first_words({"event", "_tell"}),
        "egress.origin",
        *of_processes(),
        "audit.open",
        "audit.close",
    } == EVENTS.keys()


def of_processes() -> set[str]:
    """What the watcher of processes tells goes to the log by way of the gateway, as a text."""
    texts = "".join(path.read_text() for path in (SOURCE / "gateway").rglob("*.py"))
    return set(re.findall(r'"(process\.[a-z]+)"', texts))


def test_every_decision_by_a_sandbox_policy_is_published_and_the_reverse() -> None:
    assert set(first_words({"_settle"})) == DOOR.keys()


def test_every_decision_of_the_gateway_is_published_and_the_reverse() -> None:
    assert set(first_words({"decide"})) == EGRESS.keys()


def records(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in directory.glob("*.jsonl") for line in path.read_bytes().splitlines()]


def written(directory: Path) -> list[dict[str, Any]]:
    log = AuditLog(directory)
    yes = Decision(allowed=True, rule="own-uid", reason="it is theirs")
    of = log.decision(Principal("local:1"), RunExec(sandbox="sb_1", spec=ExecSpec(argv=("true",))), yes)
    log.outcome(of, "exec.run", ok=False, error="timeout", message="too long")
    of = log.verdict("egress.dial", allowed=True, rule="r", reason="", sandbox="sb_1", detail={})
    log.outcome(of, "egress", ok=True)
    log.verdict("policy.command", allowed=False, rule="r", reason="", sandbox="sb_1", detail={"of": 1})
    log.event("task.failed", message="x")
    log.close()
    return records(directory)


def test_what_the_log_writes_has_the_fields_of_its_schema(tmp_path: Path) -> None:
    assert [problem for record in written(tmp_path) if (problem := wrong(record))] == []


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "other"},
        {"action": "unknown.event"},
        {"seq": -1},
        {"seq": "1"},
        {"sha256": "00"},
        {"colour": "red"},
        {"allowed": None},
        {"detail": []},
    ],
)
def test_what_is_no_record_is_none_by_its_schema(tmp_path: Path, change: dict[str, object]) -> None:
    record = written(tmp_path)[1]
    assert wrong(record) is None
    assert wrong({**record, **change}) is not None


def test_the_schema_is_published() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "audit-record.schema.json"
    assert json.loads(page.read_text()) == schema()
