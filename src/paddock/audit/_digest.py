"""The part of a record that describes an action: digests of contents, never the contents."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias, cast

import msgspec

from paddock.model import Action, ExecSpec, PolicyDocument, SandboxSpec, SecretValue, Value

Hide: TypeAlias = Callable[[Sequence[str]], Sequence[str]]
"""Hides known secrets in a command line, before the search for texts that look like secrets."""

_ARGUMENTS = 64
_VARIABLES = 256
_ARGUMENT_CHARS = 1024
_TEXT_CHARS = 4096

# Bounded repetitions, tried at the starts of words only: argv is the caller's, and a quadratic pattern a weapon.
_NAME = r"[\w.-]{0,64}?(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|PRIVATE_?KEY|CREDENTIALS?)[\w.-]{0,64}"
_ASSIGNMENT = re.compile(rf"(?i)((?<![\w.-]){_NAME}\s?[=:]\s?)(\"[^\"]*\"|'[^']*'|[^\s;&|]+)")
_BEARER = re.compile(r"(?i)(\b(?:bearer|basic)\s{1,4})([A-Za-z0-9._~+/=-]{6,})")
_URL_USER = re.compile(r"(?i)(https?://)[^/\s@]{1,1024}(?=@)")
_URL_PASSWORD = re.compile(r"(://[^/\s:@]{0,256}:)([^/\s@]{1,1024})(?=@)")
_OPTION = re.compile(rf"(?i)--?{_NAME}")
_GONE = "[redacted]"


def digest(data: bytes) -> dict[str, object]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "length": len(data)}


def redact_secrets(argv: Sequence[str]) -> list[str]:
    """Redact values that look like secrets by the name beside them: `API_TOKEN=x`, `--password x`, `Bearer x`,
    `https://u:x@h`.

    This is a net with holes, for slips. A secret doesn't belong in an argv: other processes can read it there.
    """
    kept: list[str] = []
    hidden = False
    for argument in argv:
        if hidden:
            hidden = False
            kept.append(_GONE)
            continue
        hidden = _OPTION.fullmatch(argument) is not None
        if "=" in argument or ":" in argument or " " in argument:
            argument = _ASSIGNMENT.sub(rf"\g<1>{_GONE}", argument)
            argument = _BEARER.sub(rf"\g<1>{_GONE}", argument)
            argument = _URL_PASSWORD.sub(rf"\g<1>{_GONE}", argument)
        kept.append(argument)
    return kept


def describe(action: Action[Any], *, hide: Hide = list) -> dict[str, object]:
    """Return the fields of `action` as a record keeps them."""
    return {field: _value(value, hide) for field, value in _changed(action).items() if value is not None}


def _value(value: object, hide: Hide) -> object:
    match value:
        case str():
            return _bounded(_URL_USER.sub(rf"\g<1>{_GONE}", value) if "@" in value else value, _TEXT_CHARS)
        case bytes():
            return digest(value)
        case SecretValue():
            return _GONE  # not even its digest: a short one could be guessed
        case ExecSpec() | SandboxSpec():
            kept = {name: _value(field, hide) for name, field in _changed(value).items()}
            kept["env"] = _env(value.env)
            if isinstance(value, ExecSpec):
                kept["argv"] = _argv(value.argv, hide)
            elif value.labels:
                kept["labels"] = value.labels
            return kept
        case PolicyDocument():
            return digest(msgspec.json.encode(value, order="deterministic"))
        case dict():
            return _env(cast("dict[str, str]", value))  # of an action: no other field is one
        case _:
            return value


def _changed(value: Value) -> dict[str, object]:
    """Return the fields that differ from the default: the others are noise in every record."""
    defaults = value.__fields__
    return {name: held for name, held in vars(value).items() if held != defaults[name]}


def _env(env: Mapping[str, str]) -> dict[str, object]:
    first = islice(env.items(), _VARIABLES)
    kept: dict[str, object] = {
        _bounded(key, 256): digest(value.encode("utf-8", "surrogatepass")) for key, value in first
    }
    if len(env) > _VARIABLES:
        kept[f"[and {len(env) - _VARIABLES} more]"] = {}
    return kept


def _argv(argv: Sequence[str], hide: Hide) -> list[str]:
    # Bounded before redaction: the patterns are linear, but 2 MiB of argv on every exec is not free.
    shown = redact_secrets(hide([argument[: 4 * _ARGUMENT_CHARS] for argument in argv[:_ARGUMENTS]]))
    kept = [_bounded(argument, _ARGUMENT_CHARS) for argument in shown]
    for index, argument in enumerate(argv[:_ARGUMENTS]):
        if len(argument) > 4 * _ARGUMENT_CHARS and not kept[index].endswith("]"):
            kept[index] += f"[of {len(argument)} characters]"
    if len(argv) > _ARGUMENTS:
        kept.append(f"[and {len(argv) - _ARGUMENTS} more]")
    return kept


def _bounded(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}[of {len(text)} characters]"
