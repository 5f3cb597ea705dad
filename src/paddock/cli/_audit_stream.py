"""`paddock audit tail` and `export`: the record as it is written, for eyes and for other programs."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from paddock.errors import InvalidArgument

from . import _render
from ._values import add_json, moment

if TYPE_CHECKING:
    from paddock.audit import RecordLine
    from paddock.model import StreamAudit

_CHUNK = 1 << 16
_WORDS = ("path", "source", "host", "address", "port", "method", "exec", "name", "reason")
_CHARS = 100


def add_tail(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "The last records as they stand in the log, decisions and outcomes apart; with -f those to come."
    )
    parser.add_argument("-f", "--follow", action="store_true", help="and what is recorded from now on")
    parser.add_argument("-n", "--last", type=int, default=10, metavar="N", help="the last N (default: 10)")
    parser.add_argument("--sandbox", metavar="ID", help="of this sandbox only")
    parser.add_argument("--kind", metavar="KIND", help="egress.connect, or egress; or decision, outcome, event")
    add_json(parser)
    parser.set_defaults(run=tail)


def add_export(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Writes the log as lines of JSON, signed heads included: what `audit verify FILE` checks anywhere. With"
        " --sandbox or --since it is a part, of which only what is there can be checked."
    )
    parser.add_argument("--format", choices=("jsonl", "ocsf"), default="jsonl", help="ocsf: OCSF 1.4, for other tools")
    parser.add_argument("--sandbox", metavar="ID", help="of this sandbox only")
    parser.add_argument("--since", type=moment, metavar="TIME", help="10m (ago), or 2026-01-31T12:00")
    parser.add_argument("-o", "--output", metavar="FILE", help="instead of stdout; a new one, but with --cursor-file")
    parser.add_argument("--cursor-file", metavar="FILE", help="go on where it says, and note there how far it came")
    parser.add_argument("--json", action="store_true", help="errors as JSON too; what is written always is")
    parser.set_defaults(run=export)


def tail(options: argparse.Namespace) -> int:
    from paddock.audit import RecordLine, parse_line
    from paddock.model import StreamAudit

    if not 0 <= options.last <= 100_000:
        raise InvalidArgument("-n takes 0 to 100000", field="last")
    action = StreamAudit(sandbox=options.sandbox, tag=options.kind, last=options.last, follow=options.follow)
    none = options.last > 0
    with _lines(action) as lines:
        for raw in lines:
            line = parse_line(raw)
            if not isinstance(line, RecordLine):
                continue
            none = False
            if options.json:
                _render.raw(1, raw)
            else:
                _render.line(_render.escape(_words(line)))
                _render.flush()
    if none and options.kind is not None:
        _render.note(
            f"there is no record of kind {options.kind!r}; `paddock audit tail` shows kinds: the second column"
        )
    return 0


def _words(line: RecordLine) -> str:
    try:
        record = json.loads(line.raw)
        if record["kind"] == "decision":
            verdict = "allowed" if record.get("allowed") else f"denied by {record.get('rule')}"
        elif record["kind"] == "outcome":
            verdict = "ok" if record.get("ok") else f"failed: {record.get('error')}"
        else:
            verdict = "event"
        when, ref = _render.when(record["time"] / 1e9), f"{line.segment.removesuffix('.jsonl')}:{record['seq']}"
        return "  ".join((when, record["action"], record.get("sandbox") or "-", verdict, _what(record), ref))
    except (ValueError, KeyError, TypeError):
        return f"no record: {line.raw!r}"


def _what(record: dict[str, Any]) -> str:
    detail = record.get("detail")
    fields = cast("dict[str, Any]", detail) if isinstance(detail, dict) else {}
    spec = fields.get("spec")
    argv = cast("dict[str, Any]", spec).get("argv") if isinstance(spec, dict) else None
    if isinstance(argv, list):
        return " ".join(map(str, cast("list[object]", argv)))[:_CHARS]
    said = [str(fields[name]) for name in _WORDS if name in fields]
    return (" ".join(said) or str(record.get("message") or record.get("reason") or ""))[:_CHARS]


def export(options: argparse.Namespace) -> int:
    from paddock.audit import RecordLine, cursor_of, parse_line, to_ocsf
    from paddock.model import StreamAudit

    place = None if options.cursor_file is None else Path(options.cursor_file)
    before: dict[str, Any] = {} if place is None else _read_place(place)
    action = StreamAudit(sandbox=options.sandbox, since=options.since, cursor=before.get("cursor"))
    cursor: str | None = None
    with _output(options.output, before.get("bytes"), resume=place is not None) as out, _lines(action) as lines:
        for raw in lines:
            cursor = cursor_of(raw) or cursor
            if options.format == "jsonl":
                _render.raw(out, raw)
            elif isinstance(line := parse_line(raw), RecordLine):
                with contextlib.suppress(ValueError, KeyError, TypeError):  # no record: `verify` is for finding that
                    event = to_ocsf(line.segment.removesuffix(".jsonl"), json.loads(line.raw))
                    _render.raw(out, json.dumps(event, separators=(",", ":")).encode("ascii") + b"\n")
        if place is not None:
            _write_place(place, cursor, out if options.output is not None else None)
    return 0


@contextlib.contextmanager
def _lines(action: StreamAudit) -> Generator[Iterator[bytes]]:
    from paddock.client import default_transport

    reader = default_transport().perform(action)

    def lines() -> Iterator[bytes]:
        rest = b""
        while data := reader.read(_CHUNK):
            *whole, rest = (rest + data).split(b"\n")
            yield from (line + b"\n" for line in whole)

    try:
        yield lines()
    finally:
        reader.close()


@contextlib.contextmanager
def _output(name: str | None, size: int | None, *, resume: bool) -> Generator[int]:
    """What was written behind `size` is of a run that did not come to its end: it comes again."""
    if name is None:
        yield 1
        return
    how = os.O_APPEND if resume else os.O_EXCL
    try:
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o600)
    except OSError as error:
        raise InvalidArgument(f"{name}: {error.strerror}", hint="another FILE, or --cursor-file to add to it") from None
    try:
        if resume and os.fstat(descriptor).st_size > (size or 0):
            os.ftruncate(descriptor, size or 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _read_place(path: Path) -> dict[str, Any]:
    try:
        said = json.loads(path.read_bytes())
        return {"cursor": str(said["cursor"]), "bytes": None if said["bytes"] is None else int(said["bytes"])}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidArgument(f"{path} is no cursor file of `paddock audit export`", hint="give another one") from None


def _write_place(path: Path, cursor: str | None, output: int | None) -> None:
    size = None
    if output is not None:
        os.fsync(output)
        size = os.fstat(output).st_size
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps({"cursor": cursor, "bytes": size}) + "\n")
    fresh.replace(path)
