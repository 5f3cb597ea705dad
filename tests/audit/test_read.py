from __future__ import annotations

from pathlib import Path

import pytest

from paddock.audit import AuditLog, read_records
from paddock.model import CreateSandbox, Decision, ExecSpec, ExtendSandbox, ListAudit, Principal, RunExec

ME = Principal("local:1")
YES, NO = Decision(allowed=True, reason="yes", rule="mine"), Decision(allowed=False, reason="too long", rule="limits")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two writers at once, and an action of each kind."""
    one, two = AuditLog(tmp_path), AuditLog(tmp_path)
    made = one.decision(ME, CreateSandbox(), YES)
    ran = two.decision(ME, RunExec(sandbox="box", spec=ExecSpec(argv=("ls",))), YES)
    one.outcome(made, "sandbox.create", ok=True, sandbox="sb_1234567890")
    two.outcome(ran, "exec.run", ok=True, sandbox="sb_1234567890", detail={"status": {"limit": "memory"}})
    two.decision(ME, ExtendSandbox(sandbox="box", ttl_seconds=9e9), NO)
    one.event("sandbox.ended", sandbox="sb_1234567890", reason="over")
    one.decision(Principal("local:2"), CreateSandbox(), YES)
    one.close()
    two.close()
    with next(tmp_path.glob("*.jsonl")).open("ab") as file:
        file.write(b'{"torn')
    return tmp_path


def told(directory: Path, names: tuple[str, ...] = (), **wanted: object) -> list[str]:
    return [record.action for record in read_records(directory, ListAudit(**wanted), names)]  # type: ignore[arg-type]


def test_actions_come_with_their_outcomes_in_the_order_of_their_decisions(directory: Path) -> None:
    records = read_records(directory, ListAudit())
    assert [(r.action, r.allowed, r.ok, r.kind) for r in records] == [
        ("sandbox.create", True, True, "action"),
        ("exec.run", True, True, "action"),
        ("sandbox.extend", False, None, "action"),
        ("sandbox.ended", None, None, "event"),
        ("sandbox.create", True, None, "action"),
    ]
    assert records[1].result == {"status": {"limit": "memory"}}
    assert records[1].sandbox == "sb_1234567890"
    assert read_records(directory, ListAudit(ref=records[1].ref)) == (records[1],)


def test_filters(directory: Path) -> None:
    assert told(directory, tag="exec") == ["exec.run"]
    assert told(directory, tag="exe") == []
    assert told(directory, principal="local:2") == ["sandbox.create"]
    assert told(directory, trouble=True) == ["exec.run", "sandbox.extend", "sandbox.ended"]
    assert told(directory, limit=2) == ["sandbox.ended", "sandbox.create"]
    assert told(directory, sandbox="sb_1234567890") == ["sandbox.create", "exec.run", "sandbox.ended"]
    assert told(directory, since=4e9) == []
    assert told(directory, until=1.0) == []


def test_what_was_denied_to_a_name_belongs_to_the_sandbox_of_that_name(directory: Path) -> None:
    assert "sandbox.extend" in told(directory, ("box",), sandbox="sb_1234567890")


def test_what_only_completes_a_record_is_no_trouble(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    log.event("egress.origin", sandbox="sb_1", flow=1, decision=0, origin="unknown", reason="nobody holds it any more")
    log.event("process.start", sandbox="sb_1", argv=["make"])
    log.event("files.changed", sandbox="sb_1", files=3)
    log.event("approval.used", sandbox="sb_1", approval="ap_1")
    assert told(tmp_path, trouble=True) == []
    log.event("files.changed", sandbox="sb_1", message="the tree has gone")
    log.event("egress.offline", sandbox="sb_1", message="the gateway has died")
    assert told(tmp_path, trouble=True) == ["files.changed", "egress.offline"]
    log.close()


def test_what_came_to_pass_as_it_should_is_no_trouble(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    asked = ("approval.asked", "files.changed", "sandbox.slept", "sandbox.woken", "workshop")
    for event in ("process.start", "process.end", "egress.origin", *asked):
        log.event(event, sandbox="sb_1", instance_id=0)
    log.event("process.watch", sandbox="sb_1", watched=True)
    log.event("process.watch", sandbox="sb_1", watched=False, why="the kernel does not tell")
    log.event("files.changed", sandbox="sb_1", message="it can't be told")
    log.close()
    assert told(tmp_path, trouble=True) == ["process.watch", "files.changed"]
