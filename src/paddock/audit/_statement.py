"""The statement about a sandbox's session: an in-toto Statement in a DSSE envelope, built from its records.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md, https://github.com/secure-systems-lab/dsse
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any, cast

from ._record import digest_of
from ._signing import SigningKey
from ._stream import SegmentLine

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:paddock:session:1"
PAYLOAD = "application/vnd.in-toto+json"
_MOST = 10_000
"""Most subjects, and most materials of each kind, in a statement. It only counts the others."""


class Session:
    """Collects the records of one sandbox, one by one, in order."""

    def __init__(self, sandbox: str) -> None:
        self._sandbox = sandbox
        self._digest, self._number = hashlib.sha256(), 0
        self._subjects: dict[str, dict[str, str]] = {}
        self._materials: dict[tuple[str, str], None] = {}
        self._revisions: dict[str, None] = {}
        self._facts: dict[str, Any] = {}
        self._left_out = 0

    def take(self, found: SegmentLine) -> None:
        record = found.record
        if record is None:
            return
        self._digest.update(bytes.fromhex(digest_of(found.raw)))
        self._number += 1
        self._facts.setdefault("startedOn", record.time)
        self._facts["finishedOn"] = record.time
        revision = record.detail.get("revision") or (record.detail.get("policy") if record.kind == "outcome" else None)
        if isinstance(revision, str):
            self._revisions[revision] = None
        if record.action == "egress.push" and record.allowed:
            self._pushed(record.detail)
        elif record.kind != "decision" and record.ok is not False:
            self._came(record.action, record.detail)

    def _came(self, action: str, detail: Mapping[str, Any]) -> None:
        match action, detail:
            case "sandbox.create", {"template": str(digest), **rest}:
                self._facts["template"] = digest
                self._facts |= {name: rest[name] for name in ("level", "backend") if name in rest}
            case (("files.changed" | "mount.promote"), {"sha256": str(digest)}):
                self._subject(action, "sha256", digest)
            case "artifact.add", {"name": str(name), "sha256": str(digest)}:
                self._subject(f"artifact/{name}", "sha256", digest)
            case "workspace.branch", {"ref": str(ref), "repository": str(url), "commit": str(commit)}:
                self._subject(f"{url}#{ref}", "gitCommit", commit)
            case "workspace.diff", {"patch_sha256": str(digest), "workspace": str(name)}:
                self._subject(f"{name}.patch", "sha256", digest)
            case "egress", {"url": str(uri), "digest": str(digest)}:
                self._material(uri, digest)
            case _:
                pass

    def _pushed(self, detail: Mapping[str, Any]) -> None:
        """Add a push. `refs` are "name old..new"."""
        refs = detail.get("refs")
        for ref in cast("list[object]", refs) if isinstance(refs, list) else []:
            name, _, objects = str(ref).partition(" ")
            new = objects.rpartition("..")[2]
            if new.strip("0"):
                self._subject(f"https://{detail.get('host')}/#{name}", "gitCommit", new)

    def _subject(self, name: str, algorithm: str, digest: str) -> None:
        if name in self._subjects or len(self._subjects) < _MOST:
            self._subjects[name] = {algorithm: digest}
        else:
            self._left_out += 1

    def _material(self, uri: str, digest: str) -> None:
        """Add a material. `digest` is "sha256:…"."""
        if ":" in digest and len(self._materials) < _MOST:
            self._materials[uri, digest] = None
        else:
            self._left_out += 1

    def statement(self, head: Mapping[str, Any]) -> dict[str, Any]:
        """Return the statement. `head` says which signed head vouches for the records."""
        records = {"name": f"{self._sandbox}/records", "digest": {"sha256": self._digest.hexdigest()}}
        subjects = [{"name": name, "digest": digest} for name, digest in self._subjects.items()]
        materials = [{"uri": uri, "digest": dict([digest.split(":", 1)])} for uri, digest in self._materials]
        predicate = {
            "sandbox": self._sandbox,
            **self._facts,
            "policyRevisions": list(self._revisions),
            "records": self._number,
            "audit": dict(head),
            "materials": materials,
        }
        if self._left_out:
            predicate["leftOut"] = self._left_out
        return {"_type": STATEMENT, "subject": [*subjects, records], "predicateType": PREDICATE, "predicate": predicate}


def envelope(statement: Mapping[str, Any], key: SigningKey) -> dict[str, Any]:
    """Sign a statement as DSSE requires: the signature covers the type and the payload, and a verifier parses only
    afterwards.
    """
    payload = json.dumps(statement, separators=(",", ":"), sort_keys=True).encode("ascii")
    kind = PAYLOAD.encode("ascii")
    encoding = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    signature = {"keyid": key.id, "sig": base64.b64encode(key.sign(encoding)).decode("ascii")}
    return {"payload": base64.b64encode(payload).decode("ascii"), "payloadType": PAYLOAD, "signatures": [signature]}
