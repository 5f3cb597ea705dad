"""`paddock audit`: the record of what was asked, decided and done."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from paddock.errors import InvalidArgument, NotFound

from . import _render
from ._audit_stream import add_export, add_tail
from ._records import command_of, verdict_of
from ._values import add_json, add_sandbox, moment, positive

if TYPE_CHECKING:
    from paddock.model import AuditRecord, AuditReport


def add(parser: argparse.ArgumentParser) -> None:
    audit = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    _add_list(audit.add_parser("ls", help="what was asked, decided and done, the newest last", allow_abbrev=False))
    add_tail(audit.add_parser("tail", help="the last records as they are; -f: and those to come", allow_abbrev=False))
    add_export(audit.add_parser("export", help="the record for other programs, or as proof", allow_abbrev=False))
    show = audit.add_parser("show", help="all of one record", allow_abbrev=False)
    show.add_argument("ref", metavar="REF", help="as `audit ls` shows it")
    add_json(show)
    show.set_defaults(run=show_one)
    check = audit.add_parser(
        "verify",
        help="whether the record is whole",
        description=(
            "Follows every link of every segment, and checks the signatures. With PATH, a copy of the directory or what"
            " `audit export` wrote, it needs nothing else of this machine. Exit code 1 if one is broken."
        ),
        allow_abbrev=False,
    )
    check.add_argument("path", nargs="?", metavar="PATH", help="a copied directory of segments, or an export")
    check.add_argument(
        "--public-key",
        action="append",
        default=[],
        metavar="FILE",
        help="whose signatures count; without it, those of any key (may be given again)",
    )
    add_json(check)
    check.set_defaults(run=verify)
    key = audit.add_parser("key", help="the public key of the signatures, in PEM", allow_abbrev=False)
    add_json(key)
    key.set_defaults(run=show_key)
    statement = audit.add_parser(
        "statement",
        help="what a sandbox's session was, signed",
        description="Prints an in-toto Statement in a DSSE envelope, which `audit key` verifies.",
        allow_abbrev=False,
    )
    add_sandbox(statement)
    statement.add_argument("--payload", action="store_true", help="the statement itself, without its envelope")
    statement.add_argument("--json", action="store_true", help="errors as JSON too; what is printed always is")
    statement.set_defaults(run=show_statement)


def _add_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sandbox", nargs="?", metavar="ID", help="of this sandbox only")
    parser.add_argument("--action", metavar="TAG", help="exec.run, or exec for all of its kind")
    parser.add_argument("--principal", metavar="WHO", help="who asked, such as local:1000")
    parser.add_argument("--trouble", action="store_true", help="what was denied, failed, or met a limit")
    parser.add_argument("--since", type=moment, metavar="TIME", help="10m (ago), or 2026-01-31T12:00")
    parser.add_argument("--until", type=moment, metavar="TIME")
    parser.add_argument("-n", "--limit", type=positive, default=50, metavar="N", help="the last N (default: 50)")
    add_json(parser)
    parser.set_defaults(run=list_some)


def list_some(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import ListAudit

    records = default_transport().perform(
        ListAudit(
            sandbox=options.sandbox,
            tag=options.action,
            principal=options.principal,
            trouble=options.trouble,
            since=options.since,
            until=options.until,
            limit=options.limit,
        )
    )
    if options.json:
        _render.document(records)
    else:
        headings = ("TIME", "WHO", "ACTION", "SANDBOX", "OUTCOME", "WHAT", "REF")
        _render.table(headings, [_row(record) for record in records])
    return 0


def _row(record: AuditRecord) -> tuple[str, ...]:
    return (
        _render.when(record.at),
        record.principal or "",
        record.action,
        record.sandbox or "",
        verdict_of(record),
        command_of(record),
        record.ref,
    )


def show_one(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import ListAudit

    records = default_transport().perform(ListAudit(ref=options.ref))
    if not records:
        raise NotFound(f"there is no record {options.ref!r}", hint="`paddock audit ls` shows the refs of records")
    record = records[0]
    if options.json:
        _render.document(record)
        return 0
    facts = [("ref", record.ref), ("time", _render.when(record.at)), ("action", record.action)]
    facts += [(name, value) for name in ("principal", "sandbox") if (value := getattr(record, name))]
    if record.allowed is not None:
        facts.append(("decision", f"{'allowed' if record.allowed else 'denied'} by {record.rule}: {record.reason}"))
    facts.append(("outcome", verdict_of(record)))
    if record.ended_at is not None:
        facts.append(("took", f"{record.ended_at - record.at:.3f} s"))
    if record.message:
        facts.append(("message", record.message))
    for heading, values in (("asked", record.detail), ("came of it", record.result)):
        facts += [(f"{heading}: {name}", _render.as_json(value)) for name, value in values.items()]
    _render.facts(facts)
    return 0


def verify(options: argparse.Namespace) -> int:
    began = time.monotonic()
    report = _verified(options)
    if options.json:
        _render.document(report)
    elif report.ok:
        took = f"{time.monotonic() - began:.1f} s"
        what = "; a part of a log, what is there" if report.part else ""
        _render.line(f"ok: {report.records} records in {report.segments} segments, head {report.head} ({took}){what}")
        _tell_signatures(report)
        for segment, first in report.removed.items():
            _render.line(f"{_render.escape(segment)} begins at record {first}: retention removed the earlier ones")
        if report.problem:
            _render.line(_render.escape(report.problem))
    else:
        _render.line(f"broken: {_render.escape(report.problem or 'no reason is given')}")
        if report.fault is not None:
            _render.line(_render.escape(f"first bad: record {report.fault.seq} of {report.fault.segment}"))
    return 0 if report.ok else 1


def _verified(options: argparse.Namespace) -> AuditReport:
    if options.path is None and not options.public_key:
        from paddock.client import default_transport
        from paddock.model import VerifyAudit

        return default_transport().perform(VerifyAudit())
    from paddock.audit import read_public_key, verify
    from paddock.keeper.layout import AUDIT, default_state_dir

    path = default_state_dir() / AUDIT if options.path is None else Path(options.path)
    if not path.exists():
        raise NotFound(
            f"there is no {path}", hint="a copy of the directory `audit`, or what `paddock audit export` wrote"
        )
    return verify(path, [read_public_key(_contents(name)) for name in options.public_key])


def _contents(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{name}: {error.strerror}", hint="paddock audit key > audit.pub") from None


def _tell_signatures(report: AuditReport) -> None:
    if not report.heads:
        _render.line("nothing is signed: records that were cut off at the end would not be missed")
        return
    rest = report.records - report.signed
    when = _render.when(report.signed_at or 0.0)
    _render.line(f"signed: {report.signed} records by {report.heads} heads, the last on {when}")
    _render.line(f"        with {', '.join(report.keys)}")
    if rest > 0:
        _render.line(f"not signed yet: {rest} records; if more were cut off behind them, nothing shows it")
    if report.gaps:
        _render.line(f"left out in {report.gaps} places: what was there is not known")


def show_key(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import GetAuditKey

    key = default_transport().perform(GetAuditKey())
    if options.json:
        _render.document(key)
    else:
        _render.line(key.pem.rstrip())
    return 0


def show_statement(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import GetAuditStatement

    statement = default_transport().perform(GetAuditStatement(sandbox=options.sandbox))
    if options.payload:
        import base64
        import json

        _render.document(json.loads(base64.b64decode(statement.payload)))
    else:
        _render.document(statement)
    return 0
