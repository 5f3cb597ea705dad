"""Records for people: decisions with their outcomes, and events, filtered."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec

from paddock.model import AuditRecord, ListAudit, nested_principal, replace

from ._parts import SUFFIX, chains, lines
from ._record import Record, read_record

MOST_RECORDS = 100_000
_OWN = frozenset({"audit.open", "audit.close"})
"""The log about itself."""
_FACTS = frozenset(
    {
        "approval.asked",  # the refusal that led to it has its own record
        "approval.used",
        "egress.origin",
        "egress.world",
        "exec.streams",
        "process.end",
        "process.start",
        "sandbox.slept",
        "sandbox.woken",
        "workshop",
        "workspace.push",
    }
)
"""Names of events that don't count as trouble."""


class Visibility(msgspec.Struct, frozen=True, kw_only=True):
    """The records that a principal may see: the ones that it asked for, and the ones of its `sandbox`."""

    principal: str
    sandbox: str | None = None

    def see(self, record: AuditRecord) -> bool:
        if record.principal is None:
            return self.sandbox is not None and record.sandbox == self.sandbox
        inside = self.sandbox is not None and record.principal == nested_principal(self.sandbox).id
        return inside or record.principal == self.principal


def read_records(
    directory: Path, wanted: ListAudit, names: tuple[str, ...] = (), *, eyes: Visibility | None = None
) -> tuple[AuditRecord, ...]:
    """Return the last records that fit, oldest first.

    Only those and the actions under way are in memory.

    `names` of the sandbox count where a record has only the caller's argument: of a denied action, and of one under
    way. Without `eyes` it returns all records that fit.
    """
    found: list[AuditRecord] = []
    for name in chains(directory):
        fitting = (record for record in _segment(directory, name) if _fits(record, wanted, names))
        found += deque((record for record in fitting if eyes is None or eyes.see(record)), maxlen=wanted.limit)
    found.sort(key=lambda record: record.at)
    return tuple(found[-wanted.limit :])


def _segment(directory: Path, name: str) -> Iterator[AuditRecord]:
    """Yield records. A decision comes when its outcome is there, or at the end."""
    open_decisions: dict[int, Record] = {}
    for _, raw in lines(directory, name):
        line = read_record(raw)
        if line is None:
            continue
        if line.kind == "decision" and line.allowed:
            open_decisions[line.seq] = line
        elif line.kind == "outcome":
            decision = open_decisions.pop(line.of if line.of is not None else -1, None)
            if decision is not None:
                yield _record(name, decision, line)
        elif line.action not in _OWN:
            yield _record(name, line, None)
    for decision in open_decisions.values():
        yield _record(name, decision, None)


def _record(name: str, first: Record, outcome: Record | None) -> AuditRecord:
    record = AuditRecord(
        ref=f"{name.removesuffix(SUFFIX)}:{first.seq}",
        at=first.time / 1e9,
        kind="event" if first.kind == "event" else "action",
        action=first.action,
        principal=first.principal,
        allowed=first.allowed,
        rule=first.rule,
        reason=first.reason,
        sandbox=first.sandbox,
        detail=first.detail,
        message=first.message,
    )
    if outcome is None:
        return record
    return replace(
        record,
        ended_at=outcome.time / 1e9,
        ok=outcome.ok,
        error=outcome.error,
        message=outcome.message,
        sandbox=outcome.sandbox or first.sandbox,
        result=outcome.detail,
    )


def _fits(record: AuditRecord, wanted: ListAudit, names: tuple[str, ...]) -> bool:
    return (
        (wanted.ref is None or record.ref == wanted.ref)
        and (wanted.sandbox is None or record.sandbox == wanted.sandbox or _means(record, wanted.sandbox, names))
        and (wanted.tag is None or record.action == wanted.tag or _begins(record.action, wanted.tag))
        and (wanted.principal is None or record.principal == wanted.principal)
        and (wanted.since is None or record.at >= wanted.since)
        and (wanted.until is None or record.at <= wanted.until)
        and (not wanted.trouble or is_trouble(record))
    )


def _means(record: AuditRecord, id: str, names: tuple[str, ...]) -> bool:
    """Tell whether a record means a sandbox by a name, or by the beginning of the id."""
    record_sandbox = record.sandbox
    return (
        record.ok is None
        and record_sandbox is not None
        and (record_sandbox in names or (record_sandbox.startswith("sb_") and id.startswith(record_sandbox)))
    )


def _begins(action: str, wanted: str) -> bool:
    """Tell whether an action is one of the wanted: `exec.` and `exec` mean all of exec's."""
    return action.startswith(wanted.rstrip(".") + ".")


def is_trouble(record: AuditRecord) -> bool:
    """Tell whether paddock denied it, it failed, a limit ended it, or it is an event without a request."""
    status = record.result.get("status")
    limited = isinstance(status, dict) and cast("dict[str, object]", status).get("limit") is not None
    return record.allowed is False or record.ok is False or limited or (record.kind == "event" and not _is_fact(record))


def _is_fact(record: AuditRecord) -> bool:
    """Tell whether an event is a plain fact. Events that report a missing observation aren't."""
    if record.action == "process.watch":
        return "why" not in record.detail
    if record.action == "files.changed":
        return record.message is None
    return record.action in _FACTS
