"""The gateway's own segment of the audit log: every decision is in the kernel's hands before its effect begins."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from paddock.audit import AuditLog
from paddock.audit._digest import redact_secrets
from paddock.errors import Unrecorded
from paddock.model.egress import Verdict


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """What one decision of the gateway was about.

    `kind`: `name` (a query to the resolver), `connect`, `dial` (an address of the target), `request`, `push` (of git),
    `secret` (a placeholder astray), `registry` (a page or a file of a package). `number` is the connection's, counted
    from 1 in each door; `path` the first 16 hex digits of the SHA-256 of path and query; `refs` all that a push would
    change, each with its old and its new object; `package` with its version, `digest` what the page said of the file,
    `malware` the list that it was looked up in.
    """

    kind: str
    sandbox: str
    incarnation: int
    number: int
    host: str
    port: int
    address: str | None = None
    tier: str | None = None
    method: str | None = None
    path: str | None = None
    refs: tuple[str, ...] | None = None
    package: str | None = None
    digest: str | None = None
    malware: str | None = None


class AuditJournal:
    """One for all doors of a gateway. Every method raises Unrecorded if the log can't be written."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def decision(self, flow: Flow, verdict: Verdict) -> int:
        """Return its number. Unless it is recorded, nothing may happen."""
        detail = {name: value for name, value in msgspec.structs.asdict(flow).items() if value is not None}
        detail |= {"flow": detail.pop("number"), "revision": verdict.revision}
        kind, sandbox = detail.pop("kind"), detail.pop("sandbox")
        return self._log.verdict(
            f"egress.{kind}",
            allowed=verdict.allowed,
            rule=verdict.rule,
            reason=verdict.reason,
            sandbox=sandbox,
            detail=detail,
        )

    def outcome(
        self,
        number: int,
        *,
        sent: int,
        received: int,
        error: str | None,
        cache: str | None = None,
        file: tuple[str, str] | None = None,
    ) -> None:
        """Record what came of it: bytes as the sandbox saw them, what the package cache did."""
        detail: dict[str, Any] = {"sent": sent, "received": received}
        if cache is not None:
            detail["cache"] = cache
        if file is not None:
            detail["url"], detail["digest"] = file
        self._log.outcome(number, "egress", ok=error is None, error=error, detail=detail)

    def origin(self, sandbox: str, incarnation: int, flow: int, decision: int, origin: dict[str, Any]) -> None:
        """Record who made the connection that the decision was about, as the witness says."""
        about = {"incarnation": incarnation, "flow": flow, "decision": decision}
        self._log.event("egress.origin", sandbox=sandbox, **about, **_told(origin))

    def crowded(self, sandbox: str, incarnation: int, refused: int) -> None:
        """Record that so many connections more were over the limit."""
        self._log.event("egress.crowded", sandbox=sandbox, incarnation=incarnation, refused=refused)

    def process(self, what: str, sandbox: str, incarnation: int, detail: dict[str, Any]) -> None:
        """Of a process inside, that has come to pass already: what can't be recorded of it is missing."""
        with suppress(Unrecorded):
            self._log.event(what, sandbox=sandbox, incarnation=incarnation, **_told(detail))


def _told(detail: dict[str, Any]) -> dict[str, Any]:
    return {**detail, "argv": redact_secrets(detail["argv"])} if "argv" in detail else detail
