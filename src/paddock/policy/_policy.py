"""A policy is a tuple of rules, asked in order; the first verdict stands. A rule that breaks is a closed door."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

import msgspec

from paddock.model import AnyAction, Decision, Principal

Judge: TypeAlias = Callable[[Principal, AnyAction], Decision | None]


class Rule(msgspec.Struct, frozen=True):
    """`judge` answers with a Decision, or with None where the rule has nothing to say.

    The recorded rule is always `name`, whatever the judge writes into its Decision.
    """

    name: str
    judge: Judge


class Policy(msgspec.Struct, frozen=True):
    rules: tuple[Rule, ...] = ()

    def decide(self, principal: Principal, action: AnyAction) -> Decision:
        """Never raises (but for what ends the program): no rule, a broken rule and a strange answer all deny."""
        for rule in self.rules:
            try:
                verdict = cast("object", rule.judge(principal, action))  # its annotation is only a promise
            except Exception as error:
                return _denied(rule, f"rule {rule.name!r} failed: {_words(error)}")
            if verdict is None:
                continue
            if not isinstance(verdict, Decision):
                return _denied(rule, f"rule {rule.name!r} answered with {type(verdict).__name__}, not with a Decision")
            if verdict.allowed is True and verdict.rule == rule.name and type(verdict.reason) is str:
                return verdict
            return Decision(allowed=verdict.allowed is True, reason=str(verdict.reason), rule=rule.name)
        return Decision(allowed=False, reason="no rule allows this", rule="default")


def allow(name: str, reason: str, applies: Callable[[Principal, AnyAction], bool]) -> Rule:
    """Allows what `applies` says True to."""
    verdict = Decision(allowed=True, reason=reason, rule=name)
    return Rule(name, lambda principal, action: verdict if applies(principal, action) else None)


def deny(name: str, objection: Callable[[Principal, AnyAction], str | None]) -> Rule:
    """Denies with the sentence that `objection` returns; None is no objection."""

    def judge(principal: Principal, action: AnyAction) -> Decision | None:
        reason = objection(principal, action)
        return None if reason is None else Decision(allowed=False, reason=reason, rule=name)

    return Rule(name, judge)


def _denied(rule: Rule, reason: str) -> Decision:
    return Decision(allowed=False, reason=reason, rule=rule.name)


def _words(error: Exception) -> str:
    # The message of a foreign exception may itself raise; that must not open the door.
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
