"""The answers of mocks: read once from the file that the policy names, and checked."""

from __future__ import annotations

import ast
import base64
import binascii
import os
import re
import stat
from pathlib import Path as File
from urllib.parse import urlsplit

import msgspec

from paddock.errors import PolicyInvalidError
from paddock.model import Mock, MockSource, PolicyDocument, Recorded

from . import _yaml
from ._names import NotAName, canonical_name
from ._paths import normal_path
from ._problem import Problem
from ._yaml import Path

MOST_HANDLER_BYTES = 256 << 10
MOST_CASSETTE_BYTES = 4 << 20
MOST_TOGETHER_BYTES = 8 << 20
FUNCTION = "handle"
METHOD = re.compile(r"[A-Z][A-Z-]{0,31}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_FIELD_VALUE = re.compile(r"[\t\x20-\x7e]{0,8192}")
_PORTS = {"http": 80, "https": 443}


class _Cassette(msgspec.Struct, forbid_unknown_fields=True):
    exchanges: tuple[Recorded, ...]
    version: int = 1


def with_files(document: PolicyDocument, directory: File) -> PolicyDocument:
    """Add the contents of the files that mocks name, below `directory` or at an absolute path. Raises Problem."""
    rules = document.egress
    if not any(isinstance(rule.source, str) for rule in rules.mock):
        return document
    mocks = tuple(
        msgspec.structs.replace(rule, source=_read(rule.source, directory, ("egress", "mock", index, "with")))
        if isinstance(rule.source, str)
        else rule
        for index, rule in enumerate(rules.mock)
    )
    return msgspec.structs.replace(document, egress=msgspec.structs.replace(rules, mock=mocks))


def check_together(mocks: tuple[Mock, ...], path: Path) -> None:
    """Problem: they are more than a snapshot may carry."""
    if sum(_size(rule.source) for rule in mocks) > MOST_TOGETHER_BYTES:
        raise Problem(path, f"handlers and cassettes have more than {MOST_TOGETHER_BYTES >> 20} MiB together")


def canonical_source(rule: Mock, path: Path) -> MockSource | None:
    """Normalise the source of a mock's answers. Raises Problem, also for a path: the compiler opens no files."""
    source = rule.source
    if source is None:
        return None
    if isinstance(source, str):
        raise Problem(path, f"{source!r} is a file, and was not read", "load the policy from its own file")
    if (source.python is None) == (source.cassette is None):
        raise Problem(path, "a mock answers with `python` or with a `cassette`", "one of them")
    if (rule.status, rule.headers, rule.body) != (200, {}, ""):
        raise Problem(path, "`with` answers, and so do `status`, `headers` and `body`", "leave one or the other out")
    if source.python is not None:
        if len(source.python) > MOST_HANDLER_BYTES:
            raise Problem(path, f"a handler of more than {MOST_HANDLER_BYTES >> 10} KiB")
        return source
    if _size(source) > MOST_CASSETTE_BYTES:
        raise Problem(path, f"a cassette of more than {MOST_CASSETTE_BYTES >> 20} MiB")
    entries = enumerate(source.cassette or ())
    return MockSource(cassette=tuple(_recorded(one, (*path, "cassette", index)) for index, one in entries))


def write_cassette(exchanges: tuple[Recorded, ...], *, as_json: bool) -> str:
    """Write a cassette as `load` reads it."""
    if as_json:
        return msgspec.json.format(msgspec.json.encode(_Cassette(exchanges)), indent=2).decode() + "\n"
    import yaml

    return yaml.safe_dump(msgspec.to_builtins(_Cassette(exchanges)), sort_keys=False, allow_unicode=True)


# -- files


def _read(name: str, directory: File, path: Path) -> MockSource:
    kind = File(name).suffix.lower()
    if kind not in (".py", ".yaml", ".yml", ".json"):
        raise Problem(path, f"{name!r} is neither a handler nor a cassette", "a file that ends in .py, .yaml or .json")
    text = _text(directory / name, MOST_HANDLER_BYTES if kind == ".py" else MOST_CASSETTE_BYTES, path)
    if kind == ".py":
        _check_python(text, name, path)
        return MockSource(python=text)
    return MockSource(cassette=_cassette(text, name, path, as_json=kind == ".json"))


def _text(file: File, most: int, path: Path) -> str:
    try:
        # Opening a pipe or a terminal would wait.
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise Problem(path, f"{os.fspath(file)!r} is not a regular file", "name a file")
            data = opened.read(most + 1)
        text = data.decode()
    except OSError as error:
        raise Problem(path, f"{os.fspath(file)!r} cannot be read: {error.strerror}", "name a file") from None
    except UnicodeDecodeError:
        raise Problem(path, f"{os.fspath(file)!r} is not UTF-8") from None
    if len(data) > most:
        raise Problem(path, f"{os.fspath(file)!r} has more than {most >> 10} KiB")
    return text


def _check_python(text: str, name: str, path: Path) -> None:
    try:
        tree = ast.parse(text, name)
    except (SyntaxError, ValueError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise Problem(path, f"{name}{where}: {error.args[0]}", "it has to be Python") from None
    except (RecursionError, MemoryError):
        raise Problem(path, f"{name} is nested too deeply") from None
    if not any(isinstance(node, ast.FunctionDef) and node.name == FUNCTION for node in tree.body):
        raise Problem(path, f"{name} has no function `{FUNCTION}`", f"def {FUNCTION}(request): return {{…}}")


def _cassette(text: str, name: str, path: Path, *, as_json: bool) -> tuple[Recorded, ...]:
    try:
        if as_json:
            return msgspec.json.decode(text, type=_Cassette).exchanges
        return msgspec.convert(_yaml.parse(text)[0], _Cassette).exchanges
    except (msgspec.DecodeError, PolicyInvalidError) as error:
        raise Problem(path, f"{name} is not a cassette: {error}", "version: 1, exchanges: […]") from None


# -- cassettes


def _size(source: MockSource | str | None) -> int:
    if not isinstance(source, MockSource):
        return 0
    bodies = (len(one.url) + len(one.body) + len(one.body_base64 or "") + 64 for one in source.cassette or ())
    return len(source.python or "") + sum(bodies)


def check_answer(one: Mock | Recorded, path: Path) -> None:
    """Check that the gateway can send the status and the headers. Raises Problem."""
    if not 200 <= one.status <= 599:
        raise Problem((*path, "status"), f"{one.status} is not a status that a server sends", "200 to 599")
    for name, value in one.headers.items():
        values = (value,) if isinstance(value, str) else value
        if not TOKEN.fullmatch(name) or not all(map(_FIELD_VALUE.fullmatch, values)):
            raise Problem((*path, "headers", name), f"{name!r} is not a valid header")


def _recorded(one: Recorded, path: Path) -> Recorded:
    if not METHOD.fullmatch(one.method):
        raise Problem((*path, "method"), f"{one.method!r} is not an HTTP method", f"write {one.method.upper()}")
    check_answer(one, path)
    if one.body_sha256 is not None and not _DIGEST.fullmatch(one.body_sha256):
        raise Problem((*path, "body_sha256"), "64 hexadecimal digits, in lower case")
    if one.body_base64 is not None:
        try:
            base64.b64decode(one.body_base64, validate=True)
        except (binascii.Error, ValueError):
            raise Problem((*path, "body_base64"), "this is not Base64") from None
        if one.body:
            raise Problem((*path, "body_base64"), "a body is given in one form", "leave the other out")
    return msgspec.structs.replace(one, url=_url(one.url, (*path, "url")))


def _url(text: str, path: Path) -> str:
    try:
        parts = urlsplit(text)
        port = parts.port
        name = canonical_name(parts.netloc.partition(":")[0])
    except (ValueError, NotAName) as error:
        raise Problem(path, f"{text!r} is not a URL: {error}", "https://host/path?query") from None
    if parts.scheme not in _PORTS or "@" in parts.netloc or parts.fragment or "\\" in text:
        raise Problem(path, f"{text!r} is not the URL of a request", "https://host/path?query")
    where = normal_path((parts.path or "/") + (f"?{parts.query}" if "?" in text else ""))
    if where is None:
        raise Problem(path, f"{text!r} has a path that two servers could read differently")
    return f"{parts.scheme}://{name}{'' if port in (None, _PORTS[parts.scheme]) else f':{port}'}{where}"
