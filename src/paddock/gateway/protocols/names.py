"""Host names and addresses in the canonical spelling for authorization, comparison and connections.

A resolver accepts more spellings of an address than `ipaddress` does (`0x7f.1`, `2130706433`, `127.1`). This accepts
only names of letters, digits and hyphens, and addresses in their usual form.
"""

from __future__ import annotations

import ipaddress
import re

from paddock.policy.network import normal_path

from .refusal import Refused

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_CANONICAL = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.){1,32}[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@/?#\\\s]+)(?::([0-9]{1,5}))?")


class BadHost(ValueError):
    """Neither a name nor an address in its usual form."""


def canonical(host: str) -> str:
    """Return a host in lower case, without a final dot, or an address as `ipaddress` writes it, without brackets."""
    if len(host) < 254 and _CANONICAL.fullmatch(host):
        return host
    address = _address(host)
    if address is not None:
        return address
    name = host.lower() if host.isascii() else ""
    name = name.removesuffix(".")
    labels = name.split(".")
    if not 0 < len(name) < 254 or not all(_LABEL.fullmatch(label) for label in labels) or _NUMBER.fullmatch(labels[-1]):
        raise BadHost(f"{host[:80]!a} is neither a host name nor an address")
    return name


def authority(text: str, default: int) -> tuple[str, int]:
    """Host and port of `host[:port]`, as in a Host header, with the port that goes without saying."""
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        raise BadHost(f"{text[:80]!a} is not HOST or HOST:PORT")
    host, port = match.groups()
    number = default if port is None else int(port)
    if not 0 < number < 1 << 16:
        raise BadHost(f"{text[:80]!a} has no port that exists")
    if host[0] == "[":
        if "." in host:
            raise BadHost(f"{host[:80]!a} is not how this address is written")
        return str(ipaddress.IPv6Address(_bare(host))), number
    return canonical(host), number


def is_address(host: str) -> bool:
    """Tell whether a canonical host is an address."""
    return _address(host) is not None


def _bare(host: str) -> str:
    try:
        ipaddress.IPv6Address(host[1:-1])
    except ValueError:
        raise BadHost(f"{host[:80]!a} is not an IPv6 address") from None
    return host[1:-1]


def _address(host: str) -> str | None:
    if "%" in host:
        return None
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


PORTS = {"http": 80, "https": 443}

_ABSOLUTE = re.compile(r"(https?)://([^/?#\\]*)(/[^#\\]*|\?[^#\\]*)?", re.IGNORECASE)


class BadTarget(Refused):
    """A request whose target two readers could take for different things."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, status=400, rule="http")


def normal(target: str) -> str:
    """Return path and query in the canonical form for authorization and for the upstream.

    Raises BadTarget if there is none.
    """
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
