"""What a request names, in the form in which it is judged."""

from __future__ import annotations

import re

from paddock.policy.egress import normal_path

from ._names import BadHost, authority
from ._refusal import Refused

PORTS = {"http": 80, "https": 443}

_ABSOLUTE = re.compile(r"(https?)://([^/?#\\]*)(/[^#\\]*|\?[^#\\]*)?", re.IGNORECASE)


class BadTarget(Refused):
    """A request whose target two readers could take for different things."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, status=400, rule="http")


def normal(target: str) -> str:
    """Path and query in the one form that is judged and sent. BadTarget: there is none."""
    path = normal_path(target)
    if path is None:
        raise BadTarget("a path that two servers could read differently: dots, slashes or escapes in disguise")
    return path


def split_target(target: str, scheme: str) -> tuple[str | None, str, int, str]:
    """Scheme (None in origin form), host, port (0 then) and path with query."""
    if target.startswith("/") or target == "*":
        return None, "", 0, target
    match = _ABSOLUTE.fullmatch(target)
    if match is None:
        raise BadTarget("the target is neither a path nor an absolute http or https URL")
    named = match[1].lower()
    host, port = read_authority(match[2], PORTS[named])
    path = match[3] or "/"
    return named, host, port, path if path.startswith("/") else f"/{path}"


def read_authority(text: str, default: int) -> tuple[str, int]:
    try:
        return authority(text, default)
    except BadHost as error:
        raise BadTarget(str(error)) from None
