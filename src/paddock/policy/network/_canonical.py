"""Checks a document, and writes it in the canonical form, which paddock compares and hashes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from ipaddress import IPv6Network
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec

from paddock.model import Allow, Approve, Binding, Deny, EgressRules, Mock, PolicyDocument, SecretRule
from paddock.model.policy import AuditRules, CommandRules, FileRules, Port, Registry
from paddock.policy.commands import MOST_RULES as MOST_COMMAND_RULES
from paddock.policy.commands import command_faults, file_faults

from ._addresses import TRANSLATED, parse_address
from ._addresses import network as parse_network
from ._mocks import METHOD, TOKEN, canonical_source, check_answer, check_together
from ._names import NotAName, canonical_name, check_wildcard
from ._paths import normal_path, pattern
from ._problem import Problem, nearest
from ._yaml import Path

REGISTRIES: dict[Registry, tuple[str, ...]] = {
    "pypi": ("pypi.org", "files.pythonhosted.org"),
    "npm": ("registry.npmjs.org",),
    "crates": ("index.crates.io", "static.crates.io", "crates.io"),
    "debian": ("deb.debian.org", "security.debian.org"),
}
"""Default hosts of each registry: the index first, then the hosts of the files."""
_INDEX_VARIABLES = {
    "pypi": ("PIP_INDEX_URL", "UV_DEFAULT_INDEX"),
    "npm": ("NPM_CONFIG_REGISTRY",),
}
MOST_RULES = 20_000
_SECRET = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_REF = re.compile(r"refs/(?:heads|tags)/[^\x00-\x20~^:?\[\\\x7f]+")
_PACKAGE = re.compile(r"[A-Za-z0-9@/._*-]{1,214}")
_RANGE = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")
_MOST_BODY = 1 << 20
_REPOSITORY = re.compile(r"/[A-Za-z0-9._~*/-]+")
_OWN = ("::1/128", "::/128")

_METHODS = [
    *("ACL", "BASELINE-CONTROL", "BIND", "CHECKIN", "CHECKOUT", "COPY", "DELETE", "GET", "HEAD", "LABEL", "LINK"),
    *("LOCK", "M-SEARCH", "MERGE", "MKACTIVITY", "MKCALENDAR", "MKCOL", "MKREDIRECTREF", "MKWORKSPACE", "MOVE"),
    *("OPTIONS", "ORDERPATCH", "PATCH", "POST", "PROPFIND", "PROPPATCH", "PURGE", "PUT", "QUERY", "REBIND", "REPORT"),
    *("SEARCH", "TRACE", "UNBIND", "UNCHECKOUT", "UNLINK", "UNLOCK", "UPDATE", "UPDATEREDIRECTREF"),
    "VERSION-CONTROL",
]
"""Those of the registry that RFC 9110 16.1 made, M-SEARCH and PURGE."""

T = TypeVar("T")


def canonical(document: PolicyDocument) -> PolicyDocument:
    """Return the canonical form of a document. Raises Problem with the path to the fault."""
    rules = document.egress
    if len(rules.allow) + len(rules.deny) + len(rules.mock) + len(document.approve) > MOST_RULES:
        raise Problem(("egress",), f"more than {MOST_RULES} rules", "a wildcard or a network stands for many")
    at: Path = ("egress",)
    egress = EgressRules(
        allow=_each(rules.allow, (*at, "allow"), _allow),
        deny=_each(rules.deny, (*at, "deny"), _deny),
        mock=_each(rules.mock, (*at, "mock"), _mock),
    )
    check_together(egress.mock, (*at, "mock"))
    approve = _each(document.approve, ("approve",), lambda one, path: one if isinstance(one, str) else _part(one, path))
    secrets = {name: _secret(name, document.secrets[name], ("secrets", name)) for name in sorted(document.secrets)}
    return PolicyDocument(
        egress=egress,
        approve=approve,
        secrets=secrets,
        commands=_commands(document.commands),
        files=_files(document.files),
        audit=document.audit if document.audit != AuditRules() else None,
    )


def _commands(rules: CommandRules | None) -> CommandRules | None:
    if rules is None:
        return None
    if len(rules.deny) + len(rules.approve) + len(rules.allow) > MOST_COMMAND_RULES:
        raise Problem(("commands",), f"more than {MOST_COMMAND_RULES} rules")
    for kind, index, key, fault in command_faults(rules):
        raise Problem(("commands", kind, index, key), fault)
    return rules


def _files(rules: FileRules | None) -> FileRules | None:
    if rules is None:
        return None
    for index, fault in file_faults(rules):
        raise Problem(("files", "protect", index), fault)
    return rules


def _each(items: Sequence[T], path: Path, one: Callable[[T, Path], T]) -> tuple[T, ...]:
    return tuple(one(item, (*path, index)) for index, item in enumerate(items))


_KINDS = ("host", "cidr", "registry", "git")
_ONLY = {  # keys that only some kinds of rules have
    "methods": ("host",),
    "paths": ("host",),
    "secret": ("host", "registry", "git"),
    "ports": ("host", "cidr", "registry"),
    "tier": ("host", "cidr"),
    "cooldown_days": ("registry",),
    "packages": ("registry",),
    "unknown_age": ("registry",),
    "hosts": ("registry",),
    "index": ("registry",),
    "malware": ("registry",),
    "fetch": ("git",),
    "push": ("git",),
}


def _allow(rule: Allow, path: Path) -> Allow:
    kind = _kind(rule, path, _KINDS)
    if kind == "cidr":
        return _cidr_allow(rule, path)
    common = {"secret": _secret_names(rule, path)}
    if kind == "host":
        _check_tier(rule, path)
        return _part(msgspec.structs.replace(rule, **common), path)
    if kind == "git":
        return msgspec.structs.replace(rule, git=_git(rule, path), push=_refs(rule, path), **common)
    _check_registry(rule, path)
    hosts = None
    if rule.hosts is not None:
        hosts = _each(rule.hosts, (*path, "hosts"), lambda text, at: host(text, at, wildcard=False))
    if rule.index is not None:
        index, name, port = _index(rule, (*path, "index"))
        public = REGISTRIES[rule.registry or "pypi"]
        others = [one for one in hosts or (public if name in public else ()) if one != name]
        rule = msgspec.structs.replace(rule, index=index, ports=rule.ports or (port,))
        hosts = (name, *others)
    return msgspec.structs.replace(rule, hosts=hosts, ports=_ports(rule.ports, path), **common)


def index_variables(document: PolicyDocument) -> dict[str, str]:
    """Return the variables that direct installers in the sandbox to the index of a rule."""
    return {
        name: rule.index
        for rule in document.egress.allow
        if rule.index
        for name in _INDEX_VARIABLES[rule.registry or ""]
    }


def _index(rule: Allow, at: Path) -> tuple[str, str, int]:
    """Return the canonical URL, its host and its port. Raises Problem."""
    text = rule.index or ""
    if rule.registry not in _INDEX_VARIABLES:
        raise Problem(at, f"no variable tells programs of an index of {rule.registry}", "`hosts` names a mirror")
    parts, port = _url(text, at, "an index", "https://host/simple")
    if parts.path and (not _REPOSITORY.fullmatch(parts.path) or "*" in parts.path):
        raise Problem(at, f"{text!r} is not the URL of an index", "https://host/simple")
    name = host(parts.netloc.partition(":")[0], at, wildcard=False)
    return f"https://{name}{'' if port == 443 else f':{port}'}{parts.path}", name, port


def _url(text: str, at: Path, what: str, example: str) -> tuple[SplitResult, int]:
    """Return the parts of an HTTPS URL without a query, and its port. Problem."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise Problem(at, f"{text!r} is not a URL", example) from None
    if parts.scheme != "https" or "@" in parts.netloc or parts.query or parts.fragment or "\\" in text:
        raise Problem(at, f"{text!r} is not the URL of {what}", f"{example}, without a user in it")
    return parts, port or 443


def _cidr_allow(rule: Allow, path: Path) -> Allow:
    if rule.ports is None:
        raise Problem(path, "a network is allowed for ports that are named", "add `ports: [5432]`, or [1-65535]")
    if rule.tier not in (None, "splice"):
        raise Problem((*path, "tier"), "there is no name to inspect for: connections to addresses are passed on")
    text = _network(rule.cidr or "", (*path, "cidr"))
    parsed = parse_network(text)
    if isinstance(parsed, IPv6Network) and any(map(parsed.subnet_of, TRANSLATED)) and text not in _OWN:
        raise Problem(
            (*path, "cidr"), f"{text!r} holds IPv4 addresses", "name the IPv4 network: those are what is judged"
        )
    return msgspec.structs.replace(rule, cidr=text, ports=_ports(rule.ports, path))


def _check_tier(rule: Allow, path: Path) -> None:
    if rule.tier == "mock":
        raise Problem((*path, "tier"), "a mock is not an allowed host", "write it below `egress.mock`")
    for key in ("methods", "paths", "secret"):
        if rule.tier == "splice" and getattr(rule, key) is not None:
            raise Problem(
                (*path, "tier"), f"what is spliced is not looked into, and `{key}` needs that", "leave `tier` out"
            )


def _deny(rule: Deny, path: Path) -> Deny:
    if _kind(rule, path, ("host", "cidr")) == "host":
        return _part(rule, path, wide=True)
    return msgspec.structs.replace(
        rule, cidr=_network(rule.cidr or "", (*path, "cidr")), ports=_ports(rule.ports, path)
    )


def _mock(rule: Mock, path: Path) -> Mock:
    check_answer(rule, path)
    if len(rule.body) > _MOST_BODY:
        raise Problem((*path, "body"), f"more than {_MOST_BODY >> 20} MiB")
    source = canonical_source(rule, (*path, "with"))
    return _part(msgspec.structs.replace(rule, source=source, secret=_secret_names(rule, path)), path)


P = TypeVar("P", Allow, Deny, Mock, Approve, Binding)


def _part(rule: P, path: Path, *, wide: bool = False) -> P:
    """Normalise the fields that all rules about hosts share. `wide`: the wildcard may cover a whole public suffix."""
    changes: dict[str, object] = {"host": host(rule.host or "", (*path, "host"), wide=wide)}
    if not isinstance(rule, Binding):
        changes["ports"] = _ports(rule.ports, path)
    if rule.methods is not None:
        for index, method in enumerate(rule.methods):
            if not METHOD.fullmatch(method):
                upper = method.upper()
                hint = f"write {upper}" if METHOD.fullmatch(upper) else None
                raise Problem((*path, "methods", index), f"{method!r} is not an HTTP method", hint)
            if method == "CONNECT":
                raise Problem((*path, "methods", index), "CONNECT is judged by host and port", "leave it out")
            if method not in _METHODS and (near := _meant(method)):  # a typo in `deny` would open a hole
                raise Problem((*path, "methods", index), f"{method!r} is not a known method", f"write {near}")
        changes["methods"] = tuple(sorted(set(rule.methods))) or _nothing((*path, "methods"))
    if rule.paths is not None:
        changes["paths"] = _each(rule.paths, (*path, "paths"), _path) or _nothing((*path, "paths"))
    return msgspec.structs.replace(rule, **changes)


def _meant(method: str) -> str | None:
    """Return the method that has one letter more or less, or the same letters in another order."""
    swapped = (known for known in _METHODS if sorted(known) == sorted(method))
    return nearest(method, _METHODS, cutoff=0.85) or next(swapped, None)


def _path(text: str, path: Path) -> str:
    try:
        return pattern(text).text
    except ValueError as error:
        raise Problem(path, f"{text!r} {error}") from None


def _kind(rule: Allow | Deny, path: Path, kinds: tuple[str, ...]) -> str:
    """Return the key that says what a rule is about. Raise Problem if it isn't one, or for a key of another kind."""
    given = [kind for kind in kinds if getattr(rule, kind) is not None]
    if not given:
        raise Problem(path, f"the rule says nothing of what it is about: {_or(kinds)}")
    if len(given) > 1:
        raise Problem((*path, given[1]), f"a rule has one of {_or(kinds)}, not {' and '.join(given)}", "make two rules")
    for key, owners in _ONLY.items():
        if getattr(rule, key, None) is not None and given[0] not in owners:
            raise Problem((*path, key), f"a rule with `{given[0]}` has no `{key}`", f"that is for {_or(owners)}")
    return given[0]


def host(text: str, path: Path, *, wildcard: bool = True, wide: bool = False) -> str:
    """Return the canonical name, with `*.` in front if `wildcard` allows it. Raises Problem."""
    star = wildcard and text.startswith("*.")
    try:
        if not star and "*" in text:
            raise NotAName("has a `*`, which only stands in front, as in `*.example.com`")
        if "/" in text or (":" in text and parse_address(text) is None):
            raise NotAName("has more than a name: scheme, port and path are not part of a host")
        if parse_address(text) is not None:
            raise Problem(path, f"{text!r} is an address", f"write `cidr: {text}` with its ports")
        name = canonical_name(text[2:] if star else text)
        if star and not wide:
            check_wildcard(name)
    except NotAName as error:
        raise Problem(path, f"{text!r} {error}") from None
    return f"*.{name}" if star else name


def _network(text: str, path: Path) -> str:
    try:
        return str(parse_network(text))
    except ValueError as error:
        raise Problem(path, f"{text!r} {error}") from None


def _ports(ports: tuple[Port, ...] | None, path: Path) -> tuple[Port, ...] | None:
    if ports is None:
        return None
    for index, port in enumerate(ports):
        low, high = span(port)
        if not 1 <= low <= high <= 65_535:
            raise Problem((*path, "ports", index), f"{port!r} is not a port", '443, or a range such as "8000-8099"')
    return tuple(sorted(set(ports), key=span)) or _nothing((*path, "ports"))


def span(port: Port) -> tuple[int, int]:
    """Return the first and the last port, or zeros for a text that isn't a range."""
    if isinstance(port, int):
        return port, port
    match = _RANGE.fullmatch(port)
    return (0, 0) if match is None else (int(match[1]), int(match[2]))


def _check_registry(rule: Allow, path: Path) -> None:
    assert rule.registry in REGISTRIES
    if rule.cooldown_days is not None and not 0 <= rule.cooldown_days < math.inf:
        raise Problem((*path, "cooldown_days"), f"{rule.cooldown_days:g} is not a number of days", "cooldown_days: 7")
    if rule.malware is not None and not rule.malware.startswith("/"):
        raise Problem((*path, "malware"), "a list is named by an absolute path", "a directory or a zip of OSV records")
    for index, package in enumerate(rule.packages or ()):
        if not _PACKAGE.fullmatch(package):
            raise Problem(
                (*path, "packages", index),
                f"{package!r} is not the name of a package",
                "a name; `*` may be a part of it",
            )
    for key in ("packages", "hosts"):
        if getattr(rule, key) == ():
            _nothing((*path, key))


def _git(rule: Allow, path: Path) -> str:
    text = rule.git or ""
    at = (*path, "git")
    parts, port = _url(text, at, "a repository", "https://host/owner/name")
    name = host(parts.netloc.partition(":")[0], at, wildcard=False)
    where = parts.path.rstrip("/").removesuffix(".git")
    if not _REPOSITORY.fullmatch(where) or "**" in where or normal_path(where) != where:
        raise Problem(at, f"{text!r} names no repository", "https://host/owner/name; `*` may be one part of it")
    return f"https://{name}{'' if port == 443 else f':{port}'}{where}"


def _refs(rule: Allow, path: Path) -> tuple[str, ...] | None:
    for index, ref in enumerate(rule.push or ()):
        if not _REF.fullmatch(ref) or ".." in ref or ref.endswith((".lock", "/", ".")) or "//" in ref:
            raise Problem(
                (*path, "push", index), f"{ref!r} is not the full name of a ref", "refs/heads/agent/*, or refs/tags/v1"
            )
    if rule.fetch is False and not rule.push:
        raise Problem(path, "neither fetched nor pushed to: the rule allows nothing", "leave it out")
    return rule.push or None


def _secret_names(rule: Allow | Mock, path: Path) -> tuple[str, ...] | None:
    if rule.secret is None:
        return None
    names = (rule.secret,) if isinstance(rule.secret, str) else rule.secret
    return tuple(sorted(set(names))) or _nothing((*path, "secret"))


def _secret(name: str, rule: SecretRule, path: Path) -> SecretRule:
    if not _SECRET.fullmatch(name):
        raise Problem((*path, "#"), f"{name!r} is not the name of a secret", "letters, digits and `_`")
    given = [key for key in rule.source.__struct_fields__ if getattr(rule.source, key) is not None]
    if len(given) != 1:
        raise Problem(
            (*path, "from"), f"a value comes from one place, not {len(given)}", _or(("env", "file", "command"))
        )
    if rule.source.file is not None and not rule.source.file.startswith("/"):
        raise Problem((*path, "from", "file"), "a file is named by an absolute path")
    if rule.source.command == ():
        raise Problem((*path, "from", "command"), "a command has a program")
    many = isinstance(rule.bind, tuple)
    bindings = rule.bind if isinstance(rule.bind, tuple) else (rule.bind,)
    if not bindings:
        raise Problem(
            (*path, "bind"), "bound to nothing, it could go nowhere", "bind: {host: …, header: authorization}"
        )
    bound = [_binding(one, (*path, "bind", index) if many else (*path, "bind")) for index, one in enumerate(bindings)]
    return SecretRule(source=rule.source, bind=tuple(bound), shape=rule.shape)


def _binding(binding: Binding, path: Path) -> Binding:
    if not (binding.header or binding.basic or binding.query or binding.body):
        raise Problem(path, "no place in a request is named", "header: authorization; or basic, query, body")
    if not 1 <= binding.port <= 65_535:
        raise Problem((*path, "port"), f"{binding.port} is not a port", "1 to 65535")
    for key in ("header", "query"):
        value = getattr(binding, key)
        if value is not None and not TOKEN.fullmatch(value):
            raise Problem((*path, key), f"{value!r} is not the name of a {key}", "letters, digits and `-`")
    header = None if binding.header is None else binding.header.lower()
    return msgspec.structs.replace(_part(binding, path), header=header)


def check_secret_names(document: PolicyDocument) -> None:
    """Check that each secret in a rule exists, and that a rule uses each secret. Raises Problem."""
    known, used = list(document.secrets), set[str]()
    for kind in ("allow", "mock"):
        rules: tuple[Allow | Mock, ...] = getattr(document.egress, kind)
        for index, rule in enumerate(rules):
            for name in rule.secret or ():
                path: Path = ("egress", kind, index, "secret")
                if name not in document.secrets:
                    near = nearest(name, known)
                    hint = f"{near} is" if near else f"describe it below `secrets`: {name}"
                    raise Problem(path, f"there is no secret {name!r}", hint)
                used.add(name)
    for name in known:
        if name not in used:
            raise Problem(
                ("secrets", name, "#"), "no rule lets it out", f"add `secret: {name}` to an `allow` or `mock` rule"
            )


def _nothing(path: Path) -> tuple[()]:
    raise Problem(path, "an empty list matches nothing", "leave the key out, or the rule")


def _or(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
