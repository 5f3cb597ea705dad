"""A policy: a sequence of rules, of which the first answer decides.

A rule that raises an exception denies.

With the daemon's rules, the state directory's own uid may do everything, below limits. A program inside a sandbox may
do only the things that its child sandboxes need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from paddock import model

Rule: TypeAlias = Callable[[model.Principal, model.Action[Any]], tuple[bool, str] | None]
"""A rule: whether it allows an action, and the reason. None: the rule doesn't apply."""

_MOST = model.Limits(
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
"""The most that one sandbox may ask for: this stops typing errors, not people."""
_MOST_TTL_SECONDS = 30 * 86_400.0


class Policy(msgspec.Struct, frozen=True):
    rules: Mapping[str, Rule] = {}

    def decide(self, principal: model.Principal, action: model.Action[Any]) -> model.Decision:
        """Decide on an action of a principal. It never raises, except for exceptions that end the program."""
        for name, rule in self.rules.items():
            try:
                answer = rule(principal, action)
            except Exception as error:
                answer = False, f"rule {name!r} failed: {type(error).__name__}: {error}"
            if answer is not None:
                return model.Decision(allowed=answer[0], reason=answer[1], rule=name)
        return model.Decision(allowed=False, reason="no rule allows this", rule="default")


def local_policy(uid: int) -> Policy:
    """Return the daemon's rules: all actions for `local:<uid>` below the limits, child sandboxes for programs inside,
    and nothing for others.
    """

    def own_uid(principal: model.Principal, _: model.Action[Any]) -> tuple[bool, str] | None:
        return (True, f"the state directory belongs to uid {uid}") if principal.id == f"local:{uid}" else None

    return Policy({"limits": _limits, "nested": _nested, "own-uid": own_uid})


def _nested(principal: model.Principal, action: model.Action[Any]) -> tuple[bool, str] | None:
    """Allow a program inside a sandbox what children need. The service checks that they are its own."""
    outer = principal.sandbox
    match action:
        case _ if outer is None:
            return None
        case model.CreateSandbox(spec=spec):
            # The child may not use the host's or another caller's resources, outlive its parent, or have children
            # itself.
            host = spec.mounts or spec.snapshot or spec.workspace or spec.policy is not None
            needed = not (host or spec.persistent or spec.nested)
        case model.ForkSandbox() | model.PromoteChild():
            needed = action.sandbox == outer
        case (
            model.KillSandbox()
            | model.PauseSandbox()
            | model.ResumeSandbox()
            | model.RunExec()
            | model.ReadFile()
            | model.WriteFile()
        ):
            needed = action.sandbox != outer
        case _:
            needed = isinstance(action, model.ListSandboxes)
    return (True, "a program inside a sandbox may have children of it") if needed else None


def _limits(_: model.Principal, action: model.Action[Any]) -> tuple[bool, str] | None:
    match action:
        case model.CreateSandbox(spec=spec):
            asked = {
                f"limits.{field}": (getattr(spec.limits, field), getattr(_MOST, field)) for field in _MOST.__fields__
            }
            asked["ttl_seconds"] = spec.ttl_seconds, _MOST_TTL_SECONDS
        case model.ExtendSandbox(ttl_seconds=ttl):
            asked = {"ttl_seconds": (ttl, _MOST_TTL_SECONDS)}
        case _:
            return None
    for name, (value, most) in asked.items():
        if not value <= most:  # written so that NaN is refused
            if name == "ttl_seconds":
                return False, f"ttl={value:.10g} is above the limit of {most:.10g} seconds, {most // 86400:g} days"
            return False, f"{name}={value:.10g} is above the limit of {most:.10g}"
    return None
