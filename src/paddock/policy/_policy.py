"""A policy is a tuple of rules, asked in order; the first verdict stands. A rule that breaks is a closed door.

That of embedded use: the state directory's own uid may do everything, below ceilings; a program inside a sandbox what
children of that one need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import msgspec

from paddock.model import (
    Action,
    CreateSandbox,
    Decision,
    ExtendSandbox,
    ForkSandbox,
    KillSandbox,
    Limits,
    ListSandboxes,
    PauseSandbox,
    Principal,
    PromoteChild,
    ReadFile,
    ResumeSandbox,
    RunExec,
    WriteFile,
)

Judge: TypeAlias = Callable[[Principal, Action[Any]], Decision | None]


class Rule(msgspec.Struct, frozen=True):
    """`judge` answers with a Decision, or with None where the rule has nothing to say.

    The recorded rule is always `name`, whatever the judge writes into its Decision.
    """

    name: str
    judge: Judge


class Policy(msgspec.Struct, frozen=True):
    rules: tuple[Rule, ...] = ()

    def decide(self, principal: Principal, action: Action[Any]) -> Decision:
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


def allow(name: str, reason: str, applies: Callable[[Principal, Action[Any]], bool]) -> Rule:
    """Allows what `applies` says True to."""
    verdict = Decision(allowed=True, reason=reason, rule=name)
    return Rule(name, lambda principal, action: verdict if applies(principal, action) else None)


def deny(name: str, objection: Callable[[Principal, Action[Any]], str | None]) -> Rule:
    """Denies with the sentence that `objection` returns; None is no objection."""

    def judge(principal: Principal, action: Action[Any]) -> Decision | None:
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


class Ceilings(msgspec.Struct, frozen=True, kw_only=True):
    """The most that one sandbox may ask for. The defaults stop typing errors, not people."""

    limits: Limits = Limits(
        cpus=256,
        memory_mib=1 << 20,
        swap_mib=1 << 20,
        processes=65_536,
        open_files=1 << 20,
        disk_mib=1 << 22,
        inodes=100_000_000,
        tmp_mib=1 << 20,
        output_mib=65_536,
    )
    ttl_seconds: float = 30 * 86_400


def local_policy(uid: int, *, ceilings: Ceilings = Ceilings()) -> Policy:  # noqa: B008 (a frozen value)
    """Everything for `local:<uid>` below `ceilings`, children for programs inside sandboxes; nothing for others."""
    owner = f"local:{uid}"
    return Policy(
        (
            deny("ceilings", lambda _, action: _above(ceilings, action)),
            allow("nested", "a program inside a sandbox may have children of it", _is_of_children),
            allow("own-uid", f"the state directory belongs to uid {uid}", lambda principal, _: principal.id == owner),
        )
    )


def _is_of_children(principal: Principal, action: Action[Any]) -> bool:
    """What a program inside a sandbox needs for children; that they are its own, the service sees to."""
    outer = principal.sandbox
    match action:
        case _ if outer is None:
            return False
        case CreateSandbox(spec=spec):
            # Nothing of the host, nothing of others, nothing that outlives it or has children again.
            host = spec.mounts or spec.snapshot or spec.workspace or spec.policy is not None
            return not (host or spec.persistent or spec.nested)
        case ForkSandbox() | PromoteChild():
            return action.sandbox == outer
        case KillSandbox() | PauseSandbox() | ResumeSandbox() | RunExec() | ReadFile() | WriteFile():
            return action.sandbox != outer
        case ListSandboxes():
            return True
        case _:
            return False


def _above(ceilings: Ceilings, action: Action[Any]) -> str | None:
    match action:
        case CreateSandbox(spec=spec):
            if not spec.ttl_seconds <= ceilings.ttl_seconds:
                return f"ttl_seconds={spec.ttl_seconds:.10g} is above the ceiling of {ceilings.ttl_seconds:.10g}"
            for field in Limits.__fields__:
                asked, most = getattr(spec.limits, field), getattr(ceilings.limits, field)
                if not asked <= most:  # written so that NaN is refused
                    return f"limits.{field}={asked:.10g} is above the ceiling of {most:.10g}"
            return None
        case ExtendSandbox(ttl_seconds=ttl) if not ttl <= ceilings.ttl_seconds:
            return f"ttl_seconds={ttl:.10g} is above the ceiling of {ceilings.ttl_seconds:.10g}"
        case _:
            return None
