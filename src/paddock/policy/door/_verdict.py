"""Of three verdicts the strictest counts."""

from __future__ import annotations

import msgspec

from paddock.model.policy import Verdict

_STRICT: dict[Verdict, int] = {"allow": 0, "approve": 1, "deny": 2}


class DoorVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """`rule` is its place in the document (`commands.deny[0]`), `reason` says why in words."""

    verdict: Verdict
    rule: str
    reason: str


def strictest(*verdicts: DoorVerdict) -> DoorVerdict:
    """The first of those that are equally strict."""
    return max(verdicts, key=lambda one: _STRICT[one.verdict])
