"""The audit log: `paddock audit` shows, follows, exports and verifies it.

`paddock why` explains from it why a sandbox died, which limits it exceeded, what the policy refused, and the next step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from paddock import client, model
from paddock.errors import InvalidArgumentError, NotFoundError

from . import _render
from ._answer import answer, ask, perform
from ._logs import lines
from ._usage import Verbs, argument, usage
from ._values import SANDBOX, moment, positive, principal

if TYPE_CHECKING:
    from paddock.audit import RecordLine

_OF_A_LINE = {"kind", "action", "allowed", "rule", "reason", "ok", "error", "message", "sandbox", "detail"}
_FIELDS = ("method", "host", "address", "port", "path", "source", "exec", "name", "ttl_seconds", "signal")
_CHARS = 100
_ERRORS = "errors as JSON too; what is printed always is"
_OF = argument("--sandbox", metavar="ID", help="of this sandbox only")
_SINCE = argument("--since", type=moment, metavar="TIME", help="10m (ago), or 2026-01-31T12:00")


@usage(
    argument("-f", "--follow", action="store_true", help="and what is recorded from now on"),
    argument("-n", "--last", type=int, default=10, metavar="N", help="the last N (default: 10)"),
    _OF,
    argument("--kind", metavar="KIND", help="egress.connect, or egress; or decision, outcome, event"),
)
def tail(options: argparse.Namespace) -> int:
    """Print the last records as they stand in the log, decisions and outcomes apart. With -f, those to come too."""
    from paddock.audit import RecordLine, parse_line

    if not 0 <= options.last <= 100_000:
        raise InvalidArgumentError("-n takes 0 to 100000", field="last")
    action = model.StreamAudit(sandbox=options.sandbox, tag=options.kind, last=options.last, follow=options.follow)
    none = options.last > 0
    with client.default_transport().perform(action) as reader:
        for raw in lines(reader):
            line = parse_line(raw)
            if not isinstance(line, RecordLine):
                continue
            none = False
            if options.json:
                _render.raw(1, raw)
            else:
                _render.line(_tail_row(line))
                _render.flush()
    if none and options.kind is not None:
        _render.note(
            f"there is no record of kind {options.kind!r}; `paddock audit tail` shows kinds: the second column"
        )
    return 0


def _tail_row(line: RecordLine) -> str:
    try:
        found = json.loads(line.raw)
        known = {name: found[name] for name in found.keys() & _OF_A_LINE}
        ref = f"{line.segment.removesuffix('.jsonl')}:{found['seq']}"
        record = model.AuditRecord(ref=ref, at=found["time"] / 1e9, **known)
        what = command_of(record) or record.message or record.reason or ""
        return "  ".join(
            (_render.when(record.at), record.action, record.sandbox or "-", verdict_of(record), what[:_CHARS], ref)
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"no record: {line.raw!r}"


@usage(
    argument("--format", choices=("jsonl", "ocsf"), default="jsonl", help="ocsf: OCSF 1.4, for other tools"),
    _OF,
    _SINCE,
    argument("-o", "--output", metavar="FILE", help="instead of stdout; a new one, but with --cursor-file"),
    argument("--cursor-file", metavar="FILE", help="go on where it says, and note there how far it came"),
    json=_ERRORS,
)
def export(options: argparse.Namespace) -> int:
    """Write the audit log for other programs, or as proof.

    These are lines of JSON with the signed heads, as `audit verify FILE` checks them anywhere. With --sandbox or
    --since it is a part of the log, and `verify` can only check that part.
    """
    from paddock.audit import RecordLine, cursor_of, parse_line, to_ocsf

    place = None if options.cursor_file is None else Path(options.cursor_file)
    before: dict[str, Any] = {} if place is None else _read_place(place)
    action = model.StreamAudit(sandbox=options.sandbox, since=options.since, cursor=before.get("cursor"))
    cursor: str | None = None
    reader = client.default_transport().perform(action)
    with reader, _output(options.output, before.get("bytes"), resume=place is not None) as out:
        for raw in lines(reader):
            cursor = cursor_of(raw) or cursor
            if options.format == "jsonl":
                _render.raw(out, raw)
            elif isinstance(line := parse_line(raw), RecordLine):
                event = to_ocsf(line.segment.removesuffix(".jsonl"), line.raw)
                if event is not None:  # else it isn't a record, which `verify` finds
                    _render.raw(out, json.dumps(event, separators=(",", ":")).encode("ascii") + b"\n")
        if place is not None:
            _write_place(place, cursor, out if options.output is not None else None)
    return 0


@contextlib.contextmanager
def _output(name: str | None, size: int | None, *, resume: bool) -> Generator[int]:
    """Yield the output at `size` bytes. An interrupted run wrote the data after that, and it comes again."""
    if name is None:
        yield 1
        return
    how = os.O_APPEND if resume else os.O_EXCL
    try:
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o600)
    except OSError as error:
        raise InvalidArgumentError(
            f"{name}: {error.strerror}", hint="another FILE, or --cursor-file to add to it"
        ) from None
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
        raise InvalidArgumentError(
            f"{path} is not a cursor file of `paddock audit export`", hint="give another one"
        ) from None


def _write_place(path: Path, cursor: str | None, output: int | None) -> None:
    size = None
    if output is not None:
        os.fsync(output)
        size = os.fstat(output).st_size
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps({"cursor": cursor, "bytes": size}) + "\n")
    fresh.replace(path)


@usage(
    argument("sandbox", nargs="?", metavar="ID", help="of this sandbox only"),
    argument("--action", metavar="TAG", help="exec.run, or exec for all of its kind"),
    argument("--principal", type=principal, metavar="WHO", help="who asked: a user of this machine, or nested:ID"),
    argument("--trouble", action="store_true", help="what was denied, failed, or met a limit"),
    _SINCE,
    argument("--until", type=moment, metavar="TIME"),
    argument("-n", "--limit", type=positive, default=50, metavar="N", help="the last N (default: 50)"),
)
def list_some(options: argparse.Namespace) -> int:
    """List the actions, decisions and outcomes, the newest last.

    Examples:
        paddock audit ls box --trouble
    """
    records = ask(model.ListAudit, options, tag=options.action)
    headings = ("TIME", "WHO", "ACTION", "SANDBOX", "OUTCOME", "WHAT", "REF")
    others = [record for record in records if record.action != "audit.list" or record.ok is not None]  # not this one
    rows = list(map(_row, others))
    return answer(options, records, show=lambda: _render.table(headings, rows))


def _who(record: model.AuditRecord) -> str:
    return model.Principal(record.principal).name if record.principal else ""


def _row(record: model.AuditRecord) -> tuple[str, ...]:
    return (
        _render.when(record.at),
        _who(record),
        record.action,
        record.sandbox or "",
        verdict_of(record),
        command_of(record),
        record.ref,
    )


@usage(argument("ref", metavar="REF", help="as `audit ls` shows it"))
def show_one(options: argparse.Namespace) -> int:
    """Show all of one record."""
    records = ask(model.ListAudit, options)
    if not records:
        raise NotFoundError(f"there is no record {options.ref!r}", hint="`paddock audit ls` shows the refs of records")
    return answer(options, records[0], show=lambda: _tell_record(records[0]))


def _tell_record(record: model.AuditRecord) -> None:
    facts = [("ref", record.ref), ("time", _render.when(record.at)), ("action", record.action)]
    facts += [(name, value) for name, value in (("who", _who(record)), ("sandbox", record.sandbox)) if value]
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


@usage(
    argument("path", nargs="?", metavar="PATH", help="a copied directory of segments, or an export"),
    argument(
        "--public-key",
        action="append",
        default=[],
        metavar="FILE",
        help="whose signatures count; without it, those of any key (may be given again)",
    ),
)
def verify(options: argparse.Namespace) -> int:
    """Check the whole audit log.

    It follows every link of every segment, and checks the signatures. With PATH, a copy of the directory or an export,
    it needs nothing else of this machine. Exit code 1 if a link or a signature is wrong.

    Examples:
        paddock audit verify
    """
    began = time.monotonic()
    report = _verified(options)
    answer(options, report, show=lambda: _tell_report(report, f"{time.monotonic() - began:.1f} s"))
    return 0 if report.ok else 1


def _tell_report(report: model.AuditReport, took: str) -> None:
    if report.ok:
        what = "; a part of a log, what is there" if report.part else ""
        _render.line(f"ok: {report.records} records in {report.segments} segments, head {report.head} ({took}){what}")
        _tell_signatures(report)
        for segment, first in report.removed.items():
            _render.line(f"{segment} begins at record {first}: retention removed the earlier ones")
        if report.problem:
            _render.line(report.problem)
    else:
        _render.line(f"broken: {report.problem or 'no reason is given'}")
        if report.fault is not None:
            _render.line(f"first bad: record {report.fault.seq} of {report.fault.segment}")


def _verified(options: argparse.Namespace) -> model.AuditReport:
    if options.path is None and not options.public_key:
        return perform(model.VerifyAudit())
    from paddock.audit import read_public_key, verify
    from paddock.supervisor.layout import AUDIT, default_state_dir

    path = default_state_dir() / AUDIT if options.path is None else Path(options.path)
    if not path.exists():
        raise NotFoundError(
            f"there is no {path}", hint="a copy of the directory `audit`, or what `paddock audit export` wrote"
        )
    return verify(path, [read_public_key(_contents(name)) for name in options.public_key])


def _contents(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"{name}: {error.strerror}", hint="paddock audit key > audit.pub") from None


def _tell_signatures(report: model.AuditReport) -> None:
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


@usage()
def show_key(options: argparse.Namespace) -> int:
    """Print the public key of the signatures, in PEM."""
    key = perform(model.GetAuditKey())
    return answer(options, key, *key.pem.splitlines())


@usage(
    SANDBOX,
    argument("--payload", action="store_true", help="the statement itself, without its envelope"),
    json=_ERRORS,
)
def show_statement(options: argparse.Namespace) -> int:
    """Print a signed statement about a sandbox's session.

    It is an in-toto Statement in a DSSE envelope, which `audit key` verifies.
    """
    statement = ask(model.GetAuditStatement, options)
    if options.payload:
        import base64

        _render.document(json.loads(base64.b64decode(statement.payload)))
    else:
        _render.document(statement)
    return 0


verb_audit = Verbs(
    ls=list_some,
    tail=tail,
    export=export,
    show=show_one,
    verify=verify,
    key=show_key,
    statement=show_statement,
)


def verdict_of(record: model.AuditRecord) -> str:
    """Return the outcome of an action."""
    if record.kind == "event":
        return "by itself"
    if record.allowed is False:
        return f"denied by {record.rule}"
    if record.ok is None:
        # A verdict on the sandbox's own action may have no outcome.
        return "allowed" if record.principal is None else "under way, or its program was killed"
    if not record.ok:
        return "failed" if reason_of(record) == record.error else f"failed: {record.error}"
    status = status_of(record)
    if status.get("limit"):
        return f"limit: {status['limit']}"
    if status.get("code") is not None:
        return f"exit code {status['code']}"
    return f"signal {status['signal']}" if status.get("signal") is not None else "ok"


def reason_of(record: model.AuditRecord) -> str | None:
    """Return why an action failed, or why the policy refused it.

    The gateway's errors are sentences, others codes beside a message.
    """
    if record.allowed is False:
        return record.reason
    why = record.detail.get("why")
    return record.message or (record.error if " " in (record.error or "") else why if isinstance(why, str) else None)


def status_of(record: model.AuditRecord) -> Mapping[str, Any]:
    """How a command ended, where it is about one that has."""
    return _mapping(record.result.get("status"))


def command_of(record: model.AuditRecord) -> str:
    """Return the arguments of an action, shortened to a line."""
    spec = _mapping(record.detail.get("spec"))
    argv = spec.get("argv", record.detail.get("argv"))
    if isinstance(argv, list):
        return " ".join(map(str, cast("list[object]", argv)))[:_CHARS]
    if record.kind == "event":
        return str(record.detail.get("reason") or record.message or "")[:_CHARS]
    named = [str(record.detail[field]) for field in _FIELDS if field in record.detail]
    named += [f"{key}={value}" for key, value in spec.items() if isinstance(value, str | int | float)]
    return " ".join(named)[:_CHARS]


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


# The options belong to `run` and `create`.
REMEDY = {
    "memory": "give it more with --memory",
    "processes": "give it more with --processes",
    "disk": "give it more with --disk",
    "inodes": "it made too many files",
    "open_files": "it held too many files open",
    "output": "it printed too much: send its output to a file",
    "time": "give it longer with --timeout",
    "ttl": "give the sandbox longer with --ttl",
    "retention": "resume it in time, or set paused_retention_days in config.toml (paddock doctor shows its path)",
}


_MOST = 20
_LAST = 5


@usage(argument("sandbox", nargs="?", metavar="ID", help="id, unique prefix of one, or name"))
def verb_why(options: argparse.Namespace) -> int:
    """Explain why a sandbox died (or that it lives), which limits it exceeded, what the policy refused and by which
    rule, and the next step. Without ID: the latest refusals and failures.

    Examples:
        paddock why box
    """
    known = None if options.sandbox is None else perform(model.InspectSandbox(sandbox=options.sandbox))
    id = None if known is None else known.sandbox.id
    records = perform(model.ListAudit(sandbox=id, trouble=True, limit=_MOST))
    trouble = [record for record in records if record.action != "sandbox.ended" and not _is_question(record)]
    questions = tuple(one for one in perform(model.ListApprovals()) if id is None or _is_about(one, id))
    asked = () if id is None else perform(model.ListAudit(sandbox=id, tag="exec"))
    last = tuple(record for record in asked if record.action in ("exec.run", "exec.start"))[-_LAST:]
    kills = () if id is None else perform(model.ListAudit(sandbox=id, tag="sandbox.kill"))
    if options.json:
        _render.document({**_document(known, records, last), "approvals": questions})
        return 0
    if known is not None:
        _tell_end(known, _who(kills[0]) if kills else None)
    for one in questions:
        _render.line(f"{one.sandbox} waits for your answer: {one.summary}")
        _render.line(f"  to do: paddock approvals approve {one.id}, until {_render.when(one.expires_at)}")
    _tell_trouble(trouble, known)
    if last and known is not None and known.sandbox.ended_at is not None:
        _render.line()
        _render.line("its last commands")
        for record in last:
            _render.line(f"  {_render.when(record.at)}  {_words(record)}")
    return 0


def _is_question(record: model.AuditRecord) -> bool:
    """Return whether an action only waits for an approval, which then is the thing to show."""
    return record.error == "approval_needed" or "approval" in record.detail


def advice(box: model.Sandbox) -> str:
    """Return the next step after its end."""
    reason = box.reason or ""
    if box.limit is not None:
        return REMEDY[box.limit]
    if reason.startswith("killed by") or reason in ("it was killed", "killed"):
        return "nothing is wrong with it: somebody asked for that; `paddock audit ls` says who"
    if "program that made it" in reason:
        return "`paddock create` makes one that stays; in a program: persistent=True"
    if "restarted" in reason or "went down" in reason:
        return "create another one"
    return "paddock doctor" if box.state == "failed" else "create another one; `paddock logs` while it lives says more"


def _is_about(question: model.Approval, id: str) -> bool:
    """Return whether a question may be about a sandbox: its own, one about a snapshot of it, or about any workspace."""
    if question.sandbox.startswith("sb_"):
        return question.sandbox == id
    return id in question.summary or "sb_" not in question.summary


def _tell_end(known: model.Inspection, killer: str | None) -> None:
    box = known.sandbox
    name = f" ({box.spec.name})" if box.spec.name else ""
    if box.ended_at is None:
        until = f"ends in {_render.span(box.expires_at - time.time())} if nobody extends it"
        if box.kept_until is not None:
            until = f"is kept until {_render.when(box.kept_until)} if nobody resumes it"
        _render.line(f"{box.id}{name} is {box.state}, and {until}")
    else:
        after = _render.span(box.ended_at - box.created_at)
        how = "never came to life" if box.state == "failed" and not known.usage else f"was {box.state}"
        _render.line(f"{box.id}{name} {how} on {_render.when(box.ended_at)}, {after} after it was asked for")
        limit = f" (limit: {box.limit})" if box.limit else ""
        reason = box.reason or "nobody recorded why"
        if reason == "it was killed" and killer is not None:  # who watched it was quicker than who killed it
            reason = f"it was killed by {killer}"
        _render.line(f"  because: {reason}{limit}")
        _render.line(f"  to do: {advice(box)}")
    if known.usage is not None:
        for limit, count in known.usage.strikes.items():
            _render.line(f"  the limit of {limit} was exceeded {count} times: {REMEDY[limit]}")


def _tell_trouble(trouble: list[model.AuditRecord], known: model.Inspection | None) -> None:
    if not trouble:
        _render.line("nothing was refused, nothing failed")
        return
    if known is not None:
        _render.line()
    _render.line("what was refused, failed, or met a limit" if known is not None else "lately refused or failed")
    for record in trouble:
        box = f"  {record.sandbox}" if known is None and record.sandbox else ""
        _render.line(f"  {_render.when(record.at)}{box}  {_words(record)}")
        if (reason := reason_of(record)) is not None:
            _render.line(f"    because: {reason}")
        if (todo := _todo(record)) is not None:
            _render.line(f"    to do: {todo}")


def _words(record: model.AuditRecord) -> str:
    return f"{record.action}  {command_of(record)}  {verdict_of(record)}"


def _todo(record: model.AuditRecord) -> str | None:
    limit = status_of(record).get("limit")
    if isinstance(limit, str):
        return REMEDY.get(limit)
    if record.allowed is False:
        if record.rule == "default" and record.action == "egress.name":
            host = record.detail.get("host")
            return f"if it may: --network {host}, or {{host: {host}}} in `egress.allow` of a policy"
        if record.principal is None:  # the sandbox did it by itself: its own policy was asked
            return f"`paddock policy show {record.sandbox}` has what it is held to, `policy set` changes it"
        return f"ask for less, or have the rule {record.rule!r} changed: it is the policy of this state directory"
    return (
        "paddock doctor" if record.error in ("level_unavailable", "not_configured", "supervisor_unavailable") else None
    )


def _document(
    known: model.Inspection | None, trouble: tuple[model.AuditRecord, ...], last: tuple[model.AuditRecord, ...]
) -> dict[str, Any]:
    box = None if known is None else known.sandbox
    return {
        "sandbox": box,
        "advice": None if box is None or box.ended_at is None else advice(box),
        "strikes": {} if known is None or known.usage is None else known.usage.strikes,
        "trouble": trouble,
        "last_commands": last,
    }
