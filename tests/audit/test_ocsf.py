"""Events in the words of OCSF, held to an excerpt of its schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paddock.audit import AuditLog, Cursor, RecordFilter, Stream, to_ocsf
from paddock.audit._record import Record, seal
from paddock.model import Decision, ExecSpec, Principal, ReadFile, RunExec, WriteFile

# Of https://schema.ocsf.io/1.4.0: what a class requires, of what kind that is, and which activities it has. `any` are
# alternatives. All have the activities 0 (unknown) and 99 (other, which has to be named).
BASE: dict[str, Any] = {
    "activity_id": int,
    "category_uid": int,
    "class_uid": int,
    "type_uid": int,
    "severity_id": int,
    "time": int,
    "metadata": {"version": str, "product": {"vendor_name": str, "name": str}},
}
SYSTEM = {"device": {"type_id": int}, "actor": {"user": {"uid": str}}}
SCHEMA: dict[int, tuple[int, range, dict[str, Any], tuple[str, ...]]] = {
    1001: (1, range(1, 15), {**SYSTEM, "file": {"name": str, "type_id": int}}, ()),
    1007: (1, range(1, 6), {**SYSTEM, "process": {"name": str}}, ()),
    4001: (4, range(1, 8), {}, ("src_endpoint", "dst_endpoint")),
    4002: (4, range(1, 10), {}, ("http_request", "http_response")),
    4003: (4, range(1, 7), {}, ("src_endpoint", "dst_endpoint")),
    6003: (6, range(1, 5), {"api": {"operation": str}, "actor": {"user": dict}, "src_endpoint": dict}, ()),
}
SEVERITIES, STATUSES, DISPOSITIONS = range(7), range(3), range(28)


def require(shape: dict[str, Any], event: dict[str, Any], where: str = "") -> None:
    for name, kind in shape.items():
        assert name in event, f"{where}{name} is required"
        if isinstance(kind, dict):
            require(kind, event[name], f"{where}{name}.")
        else:
            assert type(event[name]) is kind, f"{where}{name}"


def check(event: dict[str, Any]) -> None:
    require(BASE, event)
    category, activities, shape, any_of = SCHEMA[event["class_uid"]]
    require(shape, event)
    assert event["category_uid"] == category == event["class_uid"] // 1000
    assert event["type_uid"] == event["class_uid"] * 100 + event["activity_id"]
    assert event["activity_id"] in activities or (event["activity_id"] == 99 and event["activity_name"])
    assert not any_of or any(event.get(name) for name in any_of)
    assert event["severity_id"] in SEVERITIES
    assert event["status_id"] in STATUSES
    assert event.get("disposition_id", 0) in DISPOSITIONS
    for end in ("src_endpoint", "dst_endpoint"):
        assert end not in event or {"ip", "uid", "name", "hostname"} & event[end].keys()
    json.dumps(event)


ME = Principal("local:1")


def written(directory: Path) -> AuditLog:
    log = AuditLog(directory)
    yes = Decision(allowed=True, rule="own-uid", reason="it is theirs")
    asked = log.decision(ME, RunExec(sandbox="sb_1", spec=ExecSpec(argv=("pip", "install"))), yes)
    log.outcome(asked, "exec.run", ok=False, error="timeout", message="too long")
    log.decision(ME, ReadFile(sandbox="sb_1", path="/etc/passwd"), yes)
    log.decision(ME, WriteFile(sandbox="sb_1", path="/x"), Decision(allowed=False, rule="no", reason="no"))
    for kind, more in (
        ("name", {}),
        ("connect", {"tier": "inspect"}),
        ("dial", {"address": "192.0.2.1"}),
        ("request", {"method": "GET", "path": "ab"}),
        ("request", {"method": "BREW", "path": "ab"}),
        ("push", {"refs": ["a"]}),
        ("origin", {}),
    ):
        detail: dict[str, object] = {"host": "a.test", "port": 443, "flow": 1, **more}
        of = log.verdict(f"egress.{kind}", allowed=kind != "dial", rule="r", reason="", sandbox="sb_1", detail=detail)
        log.outcome(of, "egress", ok=True, detail={"sent": 3, "received": 4})
    log.event("process.start", sandbox="sb_1", argv=["true"], pid=7)
    log.event("files.changed", sandbox="sb_1", changes=3)
    log.event("approval.asked", sandbox="sb_1")
    log.close()
    return log


def test_every_event_is_one_of_the_schema(tmp_path: Path) -> None:
    written(tmp_path)
    events: list[dict[str, Any]] = []
    for found in Stream(tmp_path, RecordFilter(), Cursor()).records():
        event = to_ocsf(found.segment, found.raw)
        assert event is not None
        check(event)
        events.append(event)
    assert {event["class_uid"] for event in events} == set(SCHEMA)
    (run,) = [event for event in events if event["metadata"]["event_code"] == "decision:exec.run"]
    assert (run["activity_id"], run["process"]["cmd_line"]) == (1, "pip install")
    (dial,) = [event for event in events if event["metadata"]["event_code"] == "decision:egress.dial"]
    assert (dial["activity_id"], dial["action_id"], dial["dst_endpoint"]["ip"]) == (5, 2, "192.0.2.1")
    assert [event["activity_id"] for event in events if event["class_uid"] == 4002] == [3, 99, 6]


@pytest.mark.parametrize("detail", [None, [], {"spec": 3, "path": None, "argv": 1, "host": 7, "method": 9}])
@pytest.mark.parametrize("action", ["exec.run", "egress.request", "egress.name", "file.read", "x", "", "egress"])
def test_what_records_may_hold_never_crashes_it(action: str, detail: object) -> None:
    record = Record(seq=1, time=1, boottime=1, writer="w", kind="decision", action=action, detail=detail)  # pyright: ignore
    event = to_ocsf("s", seal(record)[0])
    if isinstance(detail, dict):
        assert event is not None
        check(event)
    else:
        assert event is None, "no writer makes such a record"
