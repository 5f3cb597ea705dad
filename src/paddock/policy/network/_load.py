"""Turns the text of `paddock.yaml` into a document and its snapshot. Each fault has its line and column."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import reduce
from operator import getitem
from pathlib import Path as File
from typing import Any, TypeAlias, cast, get_args

import msgspec

from paddock.errors import InvalidArgumentError, PolicyInvalidError
from paddock.model import PolicyDocument, SecretRule

from . import _yaml
from ._mocks import with_files
from ._problem import Problem, nearest
from ._schema import SAME_NAME
from ._snapshot import Snapshot, compile, compile_at
from ._yaml import Path, Places

Source: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any] | PolicyDocument"
"""A file by its path, a text (which has a line break), plain values, or a document."""

_AT = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_KINDS_OF_RULES = ("host", "cidr", "registry", "git")
_FIELD = re.compile(r"(unknown|missing required) field `(?P<name>[^`]*)`")


class Loaded(msgspec.Struct, frozen=True):
    """A policy as loaded. `places` has the positions of the document's parts in the text. It is None without a text."""

    document: PolicyDocument
    snapshot: Snapshot
    places: Places | None = None


def load(source: Source) -> Loaded:
    """Load a policy.

    Raises PolicyInvalidError, and NotFoundError or InvalidArgumentError for a file that it can't read.
    """
    if isinstance(source, PolicyDocument):
        return Loaded(source, compile(source))
    if isinstance(source, Mapping):
        return _loaded(dict(source), None, File())
    if isinstance(source, str) and "\n" in source:
        return _of_text(source, File())
    try:
        return _of_text(read(source), File(source).parent)
    except PolicyInvalidError as error:
        named = f"{os.fspath(source)}:{'' if error.message[:1].isdigit() else ' '}{error.message}"
        raise PolicyInvalidError(named, hint=error.hint, **error.details) from None


def _of_text(text: str, directory: File) -> Loaded:
    value, places = _yaml.parse(text)
    return _loaded(value, places, directory)


def to_yaml(document: PolicyDocument) -> str:
    import yaml

    return yaml.safe_dump(msgspec.to_builtins(document), sort_keys=False, allow_unicode=True)


def read(path: str | os.PathLike[str]) -> str:
    try:
        with File(path).open("rb") as file:
            data = file.read(_yaml.MOST_BYTES + 1)
        return data.decode()
    except OSError as error:
        name = os.fspath(path)
        hint = "name a file" + (
            "" if "/" in name or "." in name else "; hosts and registries are a list, for `network`"
        )
        raise InvalidArgumentError(f"the policy {name!r} cannot be read: {error.strerror}", hint=hint) from None
    except UnicodeDecodeError:
        raise InvalidArgumentError(f"the policy {os.fspath(path)!r} is not UTF-8") from None


def _loaded(value: object, places: Places | None, directory: File) -> Loaded:
    try:
        document = with_files(_document(value), directory)
        return Loaded(document, compile_at(document), places)
    except Problem as problem:
        raise problem.error(places) from None


def _document(value: object) -> PolicyDocument:
    value = _spelled_out(value)
    try:
        return msgspec.convert(value, PolicyDocument)
    except msgspec.ValidationError as error:
        raise _problem(str(error), value) from None


def _spelled_out(value: object) -> object:
    """Expand `from: env` and `from: stored`: both use the secret's own name."""
    given = _mapping(value)
    secrets = _mapping(given.get("secrets"))
    if not secrets:
        return value
    long = dict(secrets)
    for name, rule in secrets.items():
        word = _mapping(rule).get("from")
        if isinstance(word, str) and word in SAME_NAME:
            long[name] = {**_mapping(rule), "from": {word: name}}
    return {**given, "secrets": long}


def _mapping(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _problem(text: str, value: object) -> Problem:
    match = _AT.fullmatch(text)
    assert match is not None
    path = _path(match["path"] or "", value)
    field = _FIELD.search(match["what"])
    if field is None:
        return Problem(path, _words(match["what"]), _hint(path, match["what"]))
    name, type_ = field["name"], _type_at(path)
    known = [] if type_ is None else list(type_.__struct_encode_fields__)
    if field[1] != "unknown":
        return Problem(path, f"`{name}` is missing")
    near = _ELSEWHERE.get(name) or nearest(name, [*_KINDS_OF_RULES]) or nearest(name, known)
    if near not in known:
        near = nearest(name, known)
    hint = f"`{near}`?" if near else f"there are: {', '.join(known)}"
    if path and name in PolicyDocument.__struct_encode_fields__:
        hint = f"`{name}:` stands at the left margin, not below `{path[0]}`"
    return Problem((*path, name, "#"), f"there is no key `{name}`", hint)


def _path(text: str, value: object) -> Path:
    """Find the path of an error. msgspec doesn't say which key of `secrets` it was: the first that is wrong."""
    path: list[str | int] = []
    for match in _STEP.finditer(text):
        if match[1] is not None:
            path.append(match[1])
        elif match[2] == "...":
            path.append(_wrong_key(value, tuple(path)))
        else:
            path.append(int(match[2]))
    return tuple(path)


def _wrong_key(value: object, path: Path) -> str:
    mapping: dict[str, object] = reduce(getitem, path, cast("Any", value))
    kinds: dict[str, Any] = {"secrets": SecretRule, "headers": str}
    for key, item in mapping.items():
        try:
            msgspec.convert(item, kinds[str(path[-1])])
        except msgspec.ValidationError:
            return key
    return next(iter(mapping))


def _type_at(path: Path) -> type[msgspec.Struct] | None:
    found: type[msgspec.Struct] | None = PolicyDocument
    for part in path:
        types = {} if found is None else {field.encode_name: field.type for field in msgspec.structs.fields(found)}
        if part in types:  # else it is an index, or the name of a secret
            found = _struct_in(types[part])
    return found


def _struct_in(type_: Any) -> type[msgspec.Struct] | None:
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return type_
    return next((found for inner in get_args(type_) if (found := _struct_in(inner))), None)


_ELSEWHERE = {
    "domain": "host", "name": "host", "url": "host", "ip": "cidr", "network": "cidr", "port": "ports",
    "method": "methods", "path": "paths", "block": "deny", "reject": "deny", "network_policy": "egress",
    "outbound": "egress", "rules": "allow", "source": "from", "repo": "git", "repository": "git",
}  # fmt: skip
"""Our words for ones that people use."""


_KINDS = {"object": "a mapping", "array": "a list", "str": "a text", "int": "a number", "float": "a number"}


def _words(text: str) -> str:
    text = re.sub(r"`([^`]*)`", lambda match: _kinds(match[1]), text)
    return text[:1].lower() + text[1:]


def _kinds(text: str) -> str:
    return " or ".join(_KINDS.get(kind, kind) for kind in text.split(" | ") if kind != "null") or "nothing"


def _hint(path: Path, what: str) -> str | None:
    if "`bool" in what:
        return "write true or false"
    if "Expected `array" in what:
        return f"write it in brackets: {path[-1]}: [ … ]" if path else None
    if path[:1] == ("commands",) and "got `str" in what:
        return "{prefix: [git, push]} is a rule for `git push …`"
    if path == ("egress", "default"):
        return "what nothing allows is denied: that cannot be turned round"
    if path[:1] == ("version",):
        return "version: 1"
    if "enum" in what:
        return _choices(path)
    return None


def _choices(path: Path) -> str | None:
    if path[:1] == ("approve",):
        return "git.push, publish or delete; or a mapping with `host`"
    from paddock.model import Tier
    from paddock.model.policy import Registry

    known: dict[str | int, tuple[str, ...]] = {
        "tier": (Tier.SPLICE, Tier.INSPECT),
        "registry": get_args(Registry),
        "unknown_age": ("allow", "deny"),
    }
    return " or ".join(known.get(path[-1], ())) or None
