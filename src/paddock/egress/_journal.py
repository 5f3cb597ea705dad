"""The gateway's own segment of the audit log: every decision is in the kernel's hands before its effect begins."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from paddock.audit import AuditLog
from paddock.audit._digest import redact_secrets
from paddock.errors import Unrecorded
from paddock.model.egress import Verdict


class AuditJournal:
    """One for all doors of a gateway. Every method raises Unrecorded if the log can't be written."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def decision(self, kind: str, verdict: Verdict, *, sandbox: str, **about: Any) -> int:
        """Record a verdict, and return its number. Unless it is recorded, nothing may happen.

        `kind`: `name` (a query to the resolver), `connect`, `dial` (an address of the target), `request`, `push` (of
        git), `secret` (a placeholder astray), `registry` (a page or a file of a package). `about`: `incarnation`,
        `flow` (the connection's number in its door, from 1), `host`, `port`, and what applies of `address`, `tier`,
        `method`, `path` (16 hex digits of its SHA-256), `refs` (what a push changes, each with its old and its new
        object), `package` with its version, `digest` (what its page said), `malware` (the list that was asked).
        """
        detail = {name: value for name, value in about.items() if value is not None}
        return self._log.verdict(
            f"egress.{kind}",
            allowed=verdict.allowed,
            rule=verdict.rule,
            reason=verdict.reason,
            sandbox=sandbox,
            detail={**detail, "revision": verdict.revision},
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
