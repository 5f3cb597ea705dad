"""Decide, record, effect, record: the only place where a verdict is asked for and kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

from paddock.audit import AuditLog
from paddock.errors import PaddockError, PolicyDenied, Unrecorded
from paddock.model import Action, Principal
from paddock.policy import Policy


class Entry:
    """An action that was allowed, from its decision to its outcome. Exactly one outcome is recorded.

    As a context manager it records when the block ends; `defer` leaves that to a handle that outlives the block.
    """

    def __init__(self, gate: Gate, principal: Principal, tag: str, number: int) -> None:
        self.principal = principal
        self.sandbox: str | None = None
        """The id of what the action named somehow, once it is known."""
        self.number = number
        """Of the record of the decision, to which others may refer."""
        self._gate, self._tag = gate, tag
        self._deferred = self._done = False
        self._ends: list[Callable[[], None]] = []

    def defer(self) -> None:
        self._deferred = True

    def at_the_end(self, call: Callable[[], None]) -> None:
        """Before the outcome is recorded."""
        self._ends.append(call)

    def judged(self, what: str, *, allowed: bool, rule: str, reason: str, detail: dict[str, object]) -> None:
        """A further verdict on the same action, by what it is about: recorded as one. Unrecorded."""
        self._gate.audit.verdict(
            what,
            allowed=allowed,
            rule=rule,
            reason=reason[:1024],
            sandbox=self.sandbox or "",
            detail={"of": self.number, **detail},
        )

    def done(self, detail: dict[str, object] | None = None) -> None:
        if not self._done:
            self._end()
            self._gate.audit.outcome(self.number, self._tag, ok=True, sandbox=self.sandbox, detail=detail)
            self._done = True

    def afterwards(self, name: str, what: dict[str, object]) -> None:
        """What came to be known when the outcome was recorded already."""
        self._gate.audit.event(name, sandbox=self.sandbox, message=None, **{"decision": self.number, **what})

    def failed(self, error: BaseException) -> None:
        if not self._done:
            self._end()
            self._gate.audit.outcome(
                self.number, self._tag, ok=False, error=code_of(error), message=_message(error), sandbox=self.sandbox
            )
            self._done = True

    def _end(self) -> None:
        self._gate.close_entry(self.number)
        for call in self._ends:
            call()
        self._ends.clear()

    def __enter__(self) -> Entry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            if not self._deferred:
                self.done()
            return
        try:
            self.failed(error)
        except Unrecorded as unrecorded:
            error.add_note(f"and this outcome could not be recorded: {unrecorded}")


class Gate:
    def __init__(self, policy: Policy, audit: AuditLog) -> None:
        self._policy, self.audit = policy, audit
        self._open: dict[int, Entry] = {}

    def open(self, principal: Principal, action: Action[Any]) -> Entry:
        """PolicyDenied if the policy says no. Unrecorded if the decision cannot be kept: then nothing may happen."""
        verdict = self._policy.decide(principal, action)
        number = self.audit.decision(principal, action, verdict)
        if not verdict.allowed:
            raise PolicyDenied(verdict.reason, rule=verdict.rule)
        entry = Entry(self, principal, action.TAG, number)
        self._open[number] = entry
        return entry

    def close_entry(self, number: int) -> None:
        self._open.pop(number, None)

    def abandon(self) -> None:
        """Outcomes that nobody will record any more: handles that were never closed."""
        for entry in tuple(self._open.values()):
            entry.failed(Abandoned("the service was closed before it ended"))


class Abandoned(Exception):
    """Only ever recorded."""


class Unknown(Exception):
    """Only ever recorded: the caller's process ended before it said what became of what it did."""


def code_of(error: BaseException) -> str:
    if isinstance(error, PaddockError):
        return error.code
    if isinstance(error, (asyncio.CancelledError, GeneratorExit)):
        return "cancelled"
    return type(error).__name__.lower() if isinstance(error, Abandoned | Unknown) else type(error).__name__


def _message(error: BaseException) -> str | None:
    text = error.message if isinstance(error, PaddockError) else str(error)
    return text[:1024] or None
