"""The lines of an export. Each has a type, and contains the log's line byte for byte."""

from __future__ import annotations

import json
from typing import TypeAlias

import msgspec

from ._record import Broken

_RECORD, _RECORD_OF = b'{"segment":', b',"record":'
_HEAD = b'{"head":'
_HEADING = b'{"export":'
_CURSOR = b'{"cursor":'


class ExportHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of an export: its options.

    `filtered`: the export leaves records out. `resumed`: it continues an earlier export.
    """

    version: int = 1
    filtered: bool = False
    resumed: bool = False


class RecordLine(msgspec.Struct, frozen=True):
    """`raw` is the line of the segment, newline included."""

    segment: str
    raw: bytes


class HeadLine(msgspec.Struct, frozen=True):
    raw: bytes


ExportLine: TypeAlias = ExportHeader | RecordLine | HeadLine | None

_heading = msgspec.json.Decoder(dict[str, ExportHeader]).decode
_name = msgspec.json.Decoder(str).decode


def heading_line(it: ExportHeader) -> bytes:
    return _HEADING + msgspec.json.encode(it) + b"}\n"


def record_prefix(segment: str) -> bytes:
    return _RECORD + json.dumps(segment).encode("ascii") + _RECORD_OF


def record_line(prefix: bytes, raw: bytes) -> bytes:
    return prefix + raw[:-1] + b"}\n"


def head_line(raw: bytes) -> bytes:
    return _HEAD + raw[:-1] + b"}\n"


def cursor_line(text: str) -> bytes:
    return _CURSOR + json.dumps(text).encode("ascii") + b"}\n"


def cursor_of(line: bytes) -> str | None:
    return _name(line[len(_CURSOR) : -2]) if line.startswith(_CURSOR) else None


def parse_line(line: bytes) -> ExportLine:
    """Parse a line, or return None if it holds nothing of the log. Raise Broken."""
    if not line.endswith(b"}\n"):
        raise Broken("the line does not end")
    body = line[:-2] + b"\n"
    try:
        if line.startswith(_RECORD):
            name, found, raw = body[len(_RECORD) :].partition(_RECORD_OF)
            if found:
                return RecordLine(_name(name), raw)
        elif line.startswith(_HEAD):
            return HeadLine(body[len(_HEAD) :])
        elif line.startswith(_HEADING):
            return _heading(line)["export"]
        elif line.startswith(_CURSOR):
            return None
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError) as error:
        raise Broken(f"not a line of an export: {error}") from None
    raise Broken("not a line of an export")
