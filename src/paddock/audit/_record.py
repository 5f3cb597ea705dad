"""One record is one line: printable ASCII, JSON, its own SHA-256 last, over everything before it.

`{"seq":…, …, "prev":"<sha256 of the line before>","sha256":"<64 hex digits>"}`
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

from paddock.model import Value

GENESIS = "0" * 64
_TAIL = b',"sha256":"%s"}\n'
_TAIL_LENGTH = len(_TAIL % (b"0" * 64))
_encoder = msgspec.json.Encoder()


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`kind` is decision, outcome or event. `time` is wall-clock ns, `boottime` CLOCK_BOOTTIME ns. An outcome's `of`
    is the `seq` of its decision, in the same segment."""

    seq: int
    time: int
    boottime: int
    writer: str
    kind: str
    action: str
    principal: str | None = None
    allowed: bool | None = None
    rule: str | None = None
    reason: str | None = None
    of: int | None = None
    ok: bool | None = None
    error: str | None = None
    message: str | None = None
    sandbox: str | None = None
    detail: dict[str, Any] = {}
    prev: str = ""


_decode = msgspec.json.Decoder(Record).decode


def read_record(line: bytes) -> Record | None:
    """Read a line without a check of its digest, or return None if it isn't a record: `verify` reports that."""
    try:
        return _decode(line)
    except msgspec.MsgspecError:
        return None


def digest_of(line: bytes) -> str:
    """Return the digest that a record's line ends with, unchecked."""
    return line[-67:-3].decode("ascii", "replace")


def seal(record: Record) -> tuple[bytes, str]:
    """Return the line and its digest."""
    body = encode(record)
    own = hashlib.sha256(body).hexdigest()
    return body[:-1] + _TAIL % own.encode(), own


def encode(record: Record) -> bytes:
    """JSON of printable ASCII only: a name from inside a sandbox can neither end a line nor drive a terminal."""
    try:
        body = _encoder.encode(record)
    except UnicodeEncodeError:  # lone surrogates: names that are not UTF-8
        body = b"\xff"
    if not body.isascii():
        plain = {f: v for f in Record.__struct_fields__ if (v := getattr(record, f)) is not None and v != {}}
        body = json.dumps(plain, separators=(",", ":"), default=_builtins).encode("ascii")
    # DEL is the one ASCII control character that JSON lets through.
    return body.replace(b"\x7f", b"\\u007f") if b"\x7f" in body else body


def _builtins(value: object) -> object:
    """Convert a value that the standard library's encoder cannot write."""
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if isinstance(value, Value):
        return vars(value)
    if isinstance(value, (set, frozenset)):
        return sorted(str(v) for v in value)  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
    return str(value)


def link(line: bytes) -> tuple[int, str, str]:
    """Return number, `prev` and digest of a line, newline included, by their offsets.

    Raises Broken. The caller checks the chain.
    """
    if not line.endswith(b"\n"):
        raise Broken("the line does not end")
    body = line[:-_TAIL_LENGTH] + b"}"
    own = hashlib.sha256(body).hexdigest()
    if line[-_TAIL_LENGTH:] != _TAIL % own.encode():
        raise Broken("its digest is not that of its content")
    number = body[7 : body.find(b",", 7)]
    if not body.startswith(b'{"seq":') or not number.isdigit() or body[-75:-66] != b',"prev":"':
        raise Broken("not a record: seq or prev is not in its place")
    return int(number), body[-66:-2].decode("ascii", "replace"), own


class Broken(Exception):
    """A line that is not a record as `seal` makes them."""
