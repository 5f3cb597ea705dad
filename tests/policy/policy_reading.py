"""A policy document read as a person reads it: rule by rule, with no index. What snapshots are held to."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple
from urllib.parse import unquote

from paddock.model import Allow, Approve, Deny, Mock, PolicyDocument
from paddock.policy.network._canonical import REGISTRIES


class Answer(NamedTuple):
    allowed: bool
    rule: str = "default"


def is_port(rule: Allow | Deny | Mock | Approve, port: int) -> bool:
    if rule.ports is None:
        if isinstance(rule, Deny):
            return 1 <= port <= 65_535
        if isinstance(rule, Allow) and (rule.git or (rule.registry and rule.registry != "debian")):
            return port == 443
        return port in (80, 443)
    for one in rule.ports:
        low, _, high = str(one).partition("-")
        if int(low) <= port <= int(high or low):
            return True
    return False


def hosts(rule: Allow | Deny | Mock | Approve) -> tuple[str, ...]:
    if rule.host is not None:
        return (rule.host,)
    if isinstance(rule, Allow) and rule.registry:
        return rule.hosts or REGISTRIES[rule.registry]
    if isinstance(rule, Allow) and rule.git:
        return (rule.git.split("/")[2],)
    return ()


def is_host(rule: Allow | Deny | Mock | Approve, name: str) -> bool:
    return any(name == host or (host[0] == "*" and name.endswith(host[1:])) for host in hosts(rule))


def pattern(text: str, path: str) -> bool:
    parts = [".*" if part == "**" else "[^/]*" if part == "*" else re.escape(part) for part in re.split(r"(\*+)", text)]
    return re.fullmatch("".join(parts), path, re.DOTALL) is not None


def plainly(text: str) -> str:
    """The decoded reading; a star that is escaped is no star, and stands for nothing in these tests."""
    return unquote(text, encoding="latin-1")


def is_request(rule: Allow | Deny | Mock | Approve, method: str, path: str, *, strict: bool) -> bool:
    """`strict`: in both readings of the path; else in either."""
    path, _, query = path.partition("?")
    if isinstance(rule, Allow) and rule.git:
        return is_git(rule, method, path, query)
    if isinstance(rule, Allow) and rule.registry:
        return method in ("GET", "HEAD")
    if rule.methods is not None and method not in rule.methods:
        return False
    if rule.paths is None:
        return True
    for text in rule.paths:
        readings = pattern(text, path), pattern(plainly(text), plainly(path))
        if all(readings) if strict else any(readings):
            return True
    return False


def is_git(rule: Allow, method: str, path: str, query: str) -> bool:
    repository = "/" + (rule.git or "").split("/", 3)[3]
    fetch, push = rule.fetch is not False, bool(rule.push)
    for base in (repository, repository + ".git"):
        if method == "GET" and pattern(f"{base}/info/refs", path):
            return (fetch and query == "service=git-upload-pack") or (push and query == "service=git-receive-pack")
        if method == "POST" and pattern(f"{base}/git-upload-pack", path):
            return fetch
        if method == "POST" and pattern(f"{base}/git-receive-pack", path):
            return push
    return False


def connect(document: PolicyDocument, host: str, port: int) -> Answer:
    egress = document.egress
    for index, rule in enumerate(egress.deny):
        if is_host(rule, host) and is_port(rule, port) and rule.methods is None and rule.paths is None:
            return Answer(False, f"egress.deny[{index}]")
    for name, rules in (("mock", egress.mock), ("allow", egress.allow)):
        for index, rule in enumerate(rules):
            if is_host(rule, host) and is_port(rule, port):
                return Answer(True, f"egress.{name}[{index}]")
    return Answer(False)


def request(document: PolicyDocument, host: str, port: int, method: str, path: str) -> Answer:
    egress = document.egress
    if method in ("CONNECT", "TRACE"):
        return Answer(False)
    for index, rule in enumerate(egress.deny):
        if is_host(rule, host) and is_port(rule, port) and is_request(rule, method, path, strict=False):
            return Answer(False, f"egress.deny[{index}]")
    for name, rules in (("mock", egress.mock), ("allow", egress.allow)):
        for index, rule in enumerate(rules):
            if is_host(rule, host) and is_port(rule, port) and is_request(rule, method, path, strict=True):
                return Answer(True, f"egress.{name}[{index}]")
    return Answer(False)


def name(document: PolicyDocument, host: str, ports: list[int]) -> bool:
    return any(connect(document, host, port).allowed for port in ports)


def approve(document: PolicyDocument, host: str, port: int, method: str, path: str) -> bool:
    return any(
        isinstance(rule, Approve)
        and is_host(rule, host)
        and is_port(rule, port)
        and is_request(rule, method, path, strict=False)
        for rule in document.approve
    )


_PRIVATE = [
    *("0.0.0.0/8", "10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "169.254.169.254/32", "172.16.0.0/12"),
    *("192.168.0.0/16", "100.64.0.0/10", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4"),
    *("::/128", "::1/128", "fc00::/7", "fe80::/10", "fd00:ec2::254/128"),
]


def to_address(document: PolicyDocument, text: str, port: int, *, named: bool) -> Answer:
    """`named`: for a name that may be connected to on that port; else the address was dialled as such."""
    address = given = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    for index, rule in enumerate(document.egress.deny):
        inside = rule.cidr and any(one in ipaddress.ip_network(rule.cidr) for one in (given, address))
        if inside and is_port(rule, port):
            return Answer(False, f"egress.deny[{index}]")
    around = [ipaddress.ip_network(block) for block in _PRIVATE if address in ipaddress.ip_network(block)]
    narrowest = max(around, key=lambda block: block.prefixlen, default=None)
    for rule in document.egress.allow:
        if not rule.cidr or address not in (network := ipaddress.ip_network(rule.cidr)) or not is_port(rule, port):
            continue
        if narrowest is None or network.subnet_of(narrowest):  # type: ignore[arg-type]
            return Answer(True, "some")
    return Answer(named and narrowest is None)
