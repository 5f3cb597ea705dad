"""Host names and addresses in the canonical spelling for authorization, comparison and connections.

A resolver accepts more spellings of an address than `ipaddress` does (`0x7f.1`, `2130706433`, `127.1`). This accepts
only names of letters, digits and hyphens, and addresses in their usual form.
"""

from __future__ import annotations

import re
from functools import lru_cache

from paddock.policy.network import normal_path, parse_address

from .refusal import BadMessage

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@/?#\\\s]+)(?::([0-9]{1,5}))?")


@lru_cache(1024)
def canonical(host: str) -> str:
    """Return a host in lower case, without a final dot, or an address as `ipaddress` writes it, without brackets."""
    address = parse_address(host)
    if address is not None:
        return str(address)
    name = host.lower() if host.isascii() else ""
    name = name.removesuffix(".")
    labels = name.split(".")
    if not 0 < len(name) < 254 or not all(_LABEL.fullmatch(label) for label in labels) or _NUMBER.fullmatch(labels[-1]):
        raise BadMessage(f"{host[:80]!a} is neither a host name nor an address")
    return name


@lru_cache(1024)
def authority(text: str, default: int) -> tuple[str, int]:
    """Host and port of `host[:port]`, as in a Host header, with the port that goes without saying."""
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        raise BadMessage(f"{text[:80]!a} is not HOST or HOST:PORT")
    host, port = match.groups()
    number = default if port is None else int(port)
    if not 0 < number < 1 << 16:
        raise BadMessage(f"{text[:80]!a} has no port that exists")
    if host[0] == "[":
        if "." in host:
            raise BadMessage(f"{host[:80]!a} is not how this address is written")
        address = parse_address(host[1:-1])
        if address is None:
            raise BadMessage(f"{host[:80]!a} is not an IPv6 address")
        return str(address), number
    return canonical(host), number


def is_address(host: str) -> bool:
    """Tell whether a canonical host is an address."""
    return parse_address(host) is not None


PORTS = {"http": 80, "https": 443}


def written(scheme: str, host: str, port: int) -> str:
    """Return the host and its port as a Host field and a URL have them."""
    shown = f"[{host}]" if ":" in host else host
    return shown if port == PORTS[scheme] else f"{shown}:{port}"


_ABSOLUTE = re.compile(r"(https?)://([^/?#\\]*)(/[^#\\]*|\?[^#\\]*)?", re.IGNORECASE)


def normal(target: str) -> str:
    """Return path and query in the canonical form for authorization and for the upstream.

    Raises BadMessage if there is none.
    """
    path = normal_path(target)
    if path is None:
        raise BadMessage("a path that two servers could read differently: dots, slashes or escapes in disguise")
    return path


def split_target(target: str, scheme: str) -> tuple[str | None, str, int, str]:
    """Scheme (None in origin form), host, port (0 then) and path with query."""
    if target.startswith("/") or target == "*":
        return None, "", 0, target
    match = _ABSOLUTE.fullmatch(target)
    if match is None:
        raise BadMessage("the target is neither a path nor an absolute http or https URL")
    named = match[1].lower()
    host, port = authority(match[2], PORTS[named])
    path = match[3] or "/"
    return named, host, port, path if path.startswith("/") else f"/{path}"
