"""The statement of a session: what its records say, in the form that other people's tools verify."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey

from paddock.audit import AuditLog, Cursor, RecordFilter, SegmentLine, Session, Stream, envelope, open_key
from paddock.audit._record import Record, seal

OLD, NEW = "1" * 40, "2" * 40


def stated(directory: Path) -> dict[str, Any]:
    session = Session("sb_1")
    for found in Stream(directory, RecordFilter(sandboxes=("sb_1",)), Cursor()).in_order():
        session.take(found)
    return session.statement({"head": 3, "sha256": "00", "key": "11"})


def record(directory: Path) -> None:
    log = AuditLog(directory)

    def decide(action: str, allowed: bool = True, **detail: object) -> int:
        return log.verdict(action, allowed=allowed, rule="r", reason="", sandbox="sb_1", detail=detail)

    log.outcome(decide("sandbox.create"), "sandbox.create", ok=True, detail={"template": "t" * 64, "policy": "r1"})
    refs = [f"refs/heads/a {OLD}..{NEW}", f"refs/heads/gone {OLD}..{'0' * 40}"]
    decide("egress.push", host="git.test", revision="r1", refs=refs)
    decide("egress.push", allowed=False, host="git.test", revision="r2", refs=[f"refs/heads/main {OLD}..{NEW}"])
    got = decide("egress.request", revision="r2")
    log.outcome(got, "egress", ok=True, detail={"url": "https://a.test/p-1.whl", "digest": f"sha256:{'d' * 64}"})
    log.outcome(decide("artifact.add"), "artifact.add", ok=True, detail={"name": "out", "sha256": "e" * 64})
    log.outcome(decide("artifact.add"), "artifact.add", ok=False, detail={"name": "not", "sha256": "e" * 64})
    for digest in "ab":
        log.event("files.changed", sandbox="sb_1", sha256=digest * 64, changes=1)
    log.event("files.changed", sandbox="sb_2", sha256="c" * 64)
    log.close()


def test_it_says_what_came_out_by_which_policies_and_of_what(tmp_path: Path) -> None:
    record(tmp_path)
    statement = stated(tmp_path)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    subjects = {subject["name"]: subject["digest"] for subject in statement["subject"]}
    assert len(subjects.pop("sb_1/records")["sha256"]) == 64
    assert subjects == {
        "https://git.test/#refs/heads/a": {"gitCommit": NEW},
        "artifact/out": {"sha256": "e" * 64},
        "files.changed": {"sha256": "b" * 64},
    }
    predicate = statement["predicate"]
    assert predicate["policyRevisions"] == ["r1", "r2"]
    assert predicate["materials"] == [{"uri": "https://a.test/p-1.whl", "digest": {"sha256": "d" * 64}}]
    assert (predicate["template"], predicate["audit"]["head"]) == ("t" * 64, 3)


def test_any_other_record_is_another_statement(tmp_path: Path) -> None:
    record(tmp_path)
    before = stated(tmp_path)
    log = AuditLog(tmp_path)
    log.event("process.start", sandbox="sb_1")
    log.close()
    assert stated(tmp_path)["subject"][-1] != before["subject"][-1]


def parsed(made: dict[str, Any]) -> Envelope:
    return Envelope.from_dict(json.loads(json.dumps(made)))


def test_it_verifies_with_the_public_key_by_somebody_elses_library(tmp_path: Path) -> None:
    record(tmp_path / "audit")
    key = open_key(tmp_path, {})
    made = envelope(stated(tmp_path / "audit"), key)
    theirs = SSlibKey.from_crypto(Ed25519PublicKey.from_public_bytes(key.public), keyid=key.id)
    read = parsed(made)
    assert list(read.verify([theirs], 1)) == [key.id]
    assert json.loads(read.payload)["predicateType"] == "urn:paddock:session:1"
    changed = {**made, "payload": base64.b64encode(base64.b64decode(made["payload"]).replace(b"r1", b"r9")).decode()}
    with pytest.raises(VerificationError):
        parsed(changed).verify([theirs], 1)
    with pytest.raises(VerificationError):
        parsed({**made, "payloadType": "application/json"}).verify([theirs], 1)


def test_what_records_may_hold_never_crashes_it() -> None:
    session = Session("sb_1")
    odd: list[dict[str, Any]] = [{}, {"refs": 3}, {"refs": ["", " ", "a b"]}, {"template": 3}]
    odd.append({"url": "u", "digest": "x"})
    for detail in odd:
        for action in ("egress.push", "egress", "sandbox.create", "files.changed", "artifact.add", ""):
            for kind in ("decision", "outcome", "event"):
                record = Record(
                    seq=1, time=1, boottime=1, writer="w", kind=kind, action=action, allowed=True, detail=detail
                )
                session.take(SegmentLine("s", seal(record)[0], record))
    json.dumps(session.statement({}))
