"""What a sandbox has changed is recorded where its policy asks for that, whatever it calls its files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from paddock.audit import read_records
from paddock.model import AuditRecord, ListAudit
from paddock.supervisor import layout
from tests.conftest import SandboxFactory

HOSTILE = r"""
set -e; cd /workspace
echo kept > file; ln -s /etc/shadow link; mkdir -p deep/er; mkfifo deep/pipe
printf x > "$(printf 'a\nb\033[2J')"; mkdir shut; echo secret > shut/in; chmod 0 shut
"""


def changes(shared_state: Path, sandbox: str) -> list[AuditRecord]:
    return list(read_records(shared_state / layout.AUDIT, ListAudit(sandbox=sandbox, tag="files.changed")))


def test_they_are_recorded_at_a_snapshot_and_at_the_end(sandbox: SandboxFactory, shared_state: Path) -> None:
    made = sandbox(policy={"audit": {"files": True}})
    assert made.exec(("sh", "-c", HOSTILE)).exit_code == 0
    snapshot = made.snapshot()
    made.exec("rm file; echo more > other")
    made.kill()
    made.delete_snapshot(snapshot)
    found = changes(shared_state, made.id)
    if found and "copies whole trees" in (found[0].message or ""):
        pytest.skip(str(found[0].message))
    first, last = found
    assert [one.detail["at"] for one in (first, last)] == ["snapshot", "end"]
    before, after = first.detail["first"], last.detail["first"]
    digest = hashlib.sha256(b"kept\n").hexdigest()
    assert f"file 644 5 {digest} /workspace/file" in before
    assert not [line for line in after if line.endswith("/workspace/file")]
    assert [line for line in after if line.endswith("/workspace/other")]
    (link,) = [line for line in before if line.endswith("/workspace/link")]
    assert hashlib.sha256(b"/etc/shadow").hexdigest() in link, "where it leads to, and nothing from there"
    assert [line for line in before if "\n" in line and line.startswith("file 644 1 ")], "one entry, whatever its name"
    assert [line for line in after if line.endswith("/workspace/shut/in")], "what is about to be deleted is looked into"
    assert last.detail["changes"] >= len(set(after)) == len(after)


def test_without_a_policy_that_asks_nothing_is_looked_at(sandbox: SandboxFactory, shared_state: Path) -> None:
    for policy in (None, {"egress": {"allow": [{"host": "example.com"}]}}):
        made = sandbox(policy=policy)
        made.exec("echo x > file")
        made.kill()
        assert changes(shared_state, made.id) == []
