"""What a replay needs of a session is in the log: where it began, what was run with which input and environment, what
it printed, how long it took, and which of its commands made which connection."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from paddock.audit import read_records
from paddock.model import AuditRecord, ListAudit, PtySize
from paddock.supervisor import layout
from tests.conftest import SandboxFactory

POLICY = {"egress": {"allow": [{"host": "allowed.example", "methods": ["GET"]}]}}
CALL = """
import socket
s = socket.create_connection(('198.51.100.7', 80), 100)
s.sendall(b'GET / HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n')
s.recv(99)
"""


def digest(data: bytes) -> dict[str, object]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "length": len(data)}


def test_a_session_can_be_followed_from_its_records(sandbox: SandboxFactory, shared_state: Path) -> None:
    made = sandbox(policy=POLICY, env={"LANG": "C"})
    made.exec("cat; echo $V >&2; exit 3", input=b"given", env={"V": "x"}, cwd="/tmp")
    with made.start("cat; echo more", stdin=True) as started:
        started.stdin.write(b"wri")
        started.stdin.write(b"tten")
        started.stdin.close()
        assert b"".join(started.stdout) == b"writtenmore\n"
        started.wait()
    made.exec(["python3", "-c", CALL])
    made.kill()
    records = read_records(shared_state / layout.AUDIT, ListAudit(sandbox=made.id, limit=1000))

    (create,) = of(records, "sandbox.create")
    assert create.detail["spec"]["env"] == {"LANG": digest(b"C")}
    assert create.result["policy"] == made.policy
    assert len(create.result["template"]) >= 32

    first, call = of(records, "exec.run")
    spec = first.detail["spec"]
    assert (spec["argv"][-1], spec["cwd"], spec["env"]) == (
        "cat; echo $V >&2; exit 3",
        "/tmp",
        {"V": digest(b"x")},
    )
    assert first.detail["input"] == digest(b"given")
    assert (first.result["out"], first.result["err"]) == (digest(b"given"), digest(b"x\n"))
    assert first.result["status"]["code"] == 3
    assert first.result["status"]["duration_seconds"] > 0
    assert first.ended_at is not None
    assert first.at < first.ended_at

    (streamed,) = of(records, "exec.start")
    passed = passed_in(records)
    assert passed["in"] == digest(b"written")
    assert passed["out"] == digest(b"writtenmore\n")
    pids = [one.result["pid"] for one in (first, streamed, call)]
    assert len(set(pids)) == 3, pids

    (denied,) = of(records, "egress.connect")
    (origin,) = of(records, "egress.origin")
    assert origin.detail["flow"] == denied.detail["flow"]
    above = {origin.detail.get("pid"), *(one["pid"] for one in origin.detail.get("above", ()))}
    if os.getuid() == 0:
        assert call.result["pid"] in above
        assert not above & {first.result["pid"], streamed.result["pid"]}
    else:
        assert call.result["pid"] in above or origin.detail["why"], "or it says why it can't be told"


def test_the_digest_of_a_long_input_is_told(sandbox: SandboxFactory, shared_state: Path) -> None:
    made = sandbox()
    data = os.urandom((1 << 20) + 5)
    with made.start("cat > /dev/null", stdin=True) as started:
        for at in range(0, len(data), 100_000):
            started.stdin.write(data[at : at + 100_000])
        started.stdin.close()
        started.wait()
    records = read_records(shared_state / layout.AUDIT, ListAudit(sandbox=made.id))
    assert passed_in(records)["in"] == digest(data)


def test_of_what_is_typed_on_a_terminal_there_is_no_digest(sandbox: SandboxFactory, shared_state: Path) -> None:
    made = sandbox()
    with made.start("read -r line; echo done", pty=PtySize(rows=24, columns=80)) as started:
        started.stdin.write(b"a password\n")
        while started.stdout.read():
            pass
        started.wait()
    records = read_records(shared_state / layout.AUDIT, ListAudit(sandbox=made.id, limit=1000))
    (typed,) = of(records, "exec.start")
    assert {"in", "out"} & typed.result.keys() == {"out"}
    later = [one.detail for one in of(records, "exec.streams")]
    assert hashlib.sha256(b"a password\n").hexdigest() not in json.dumps([typed.result, later])


def passed_in(records: tuple[AuditRecord, ...]) -> dict[str, Any]:
    """Through the one handle that there was, to its end."""
    (streamed,) = of(records, "exec.start")
    later = [one.detail for one in of(records, "exec.streams")]
    assert all(one["decision"] == int(streamed.ref.rpartition(":")[2]) for one in later)
    return {**streamed.result, **(later[-1] if later else {})}


def of(records: tuple[AuditRecord, ...], action: str) -> list[Any]:
    return [one for one in records if one.action == action]
