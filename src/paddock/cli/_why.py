"""`paddock why`: from the records, in plain words: why it died, what struck, what was refused, what to do."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from paddock import model

from . import _render
from ._answer import perform
from ._values import add_json

if TYPE_CHECKING:
    from paddock.model import AuditRecord

_CHARS = 100
_FIELDS = ("method", "host", "port", "path", "source", "exec", "name", "ttl_seconds", "signal")


def verdict_of(record: AuditRecord) -> str:
    """What came of it."""
    if record.kind == "event":
        return "by itself"
    if record.allowed is False:
        return f"denied by {record.rule}"
    if record.ok is None:
        # What a sandbox did by itself is judged; not every verdict has something that comes of it.
        return "allowed" if record.principal is None else "under way, or its program was killed"
    if not record.ok:
        return "failed" if reason_of(record) == record.error else f"failed: {record.error}"
    status = status_of(record)
    if status.get("limit"):
        return f"limit: {status['limit']}"
    if status.get("code") is not None:
        return f"exit code {status['code']}"
    return f"signal {status['signal']}" if status.get("signal") is not None else "ok"


def reason_of(record: AuditRecord) -> str | None:
    """Why it was refused or failed. The gateway's errors are sentences, all others codes beside a message."""
    if record.allowed is False:
        return record.reason
    return record.message or (record.error if " " in (record.error or "") else None)


def status_of(record: AuditRecord) -> Mapping[str, Any]:
    """How a command ended, where it is about one that has."""
    return _mapping(record.result.get("status"))


def command_of(record: AuditRecord) -> str:
    """What was asked, as far as it fits on a line."""
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


def add_why(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Why a sandbox died (or that it lives), which limits struck, what was refused and by which rule, and what to"
        " do. Without ID: what was refused or went wrong lately."
    )
    parser.add_argument("sandbox", nargs="?", metavar="ID", help="id, unique prefix of one, or name")
    add_json(parser, run)


def run(options: argparse.Namespace) -> int:
    known = None if options.sandbox is None else perform(model.InspectSandbox(sandbox=options.sandbox))
    id = None if known is None else known.sandbox.id
    trouble = perform(model.ListAudit(sandbox=id, trouble=True, limit=_MOST))
    asked = () if id is None else perform(model.ListAudit(sandbox=id, tag="exec"))
    last = tuple(record for record in asked if record.action in ("exec.run", "exec.start"))[-_LAST:]
    kills = () if id is None else perform(model.ListAudit(sandbox=id, tag="sandbox.kill"))
    if options.json:
        _render.document(_document(known, trouble, last))
        return 0
    if known is not None:
        _tell_end(known, kills[0].principal if kills else None)
    _tell_trouble(tuple(record for record in trouble if record.action != "sandbox.ended"), known)
    if last and known is not None and known.sandbox.ended_at is not None:
        _render.line("\nits last commands")
        for record in last:
            _render.line(f"  {_render.when(record.at)}  {_words(record)}")
    return 0


def advice(box: model.Sandbox) -> str:
    """What to do about its end."""
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


def _tell_end(known: model.Inspection, killer: str | None) -> None:
    box = known.sandbox
    name = f" ({box.spec.name})" if box.spec.name else ""
    if box.ended_at is None:
        until = f"ends in {_render.span(box.expires_at - time.time())} if nobody extends it"
        if box.kept_until is not None:
            until = f"is kept until {_render.when(box.kept_until)} if nobody resumes it"
        _render.line(_render.escape(f"{box.id}{name} is {box.state}, and {until}"))
    else:
        after = _render.span(box.ended_at - box.created_at)
        how = "never came to life" if box.state == "failed" and not known.usage else f"was {box.state}"
        how = f"was {box.state}" if box.state != "failed" else how
        _render.line(
            _render.escape(f"{box.id}{name} {how} on {_render.when(box.ended_at)}, {after} after it was asked for")
        )
        limit = f" (limit: {box.limit})" if box.limit else ""
        reason = box.reason or "nobody recorded why"
        if reason == "it was killed" and killer is not None:  # who watched it was quicker than who killed it
            reason = f"it was killed by {killer}"
        _render.line(_render.escape(f"  because: {reason}{limit}"))
        _render.line(_render.escape(f"  to do: {advice(box)}"))
    if known.usage is not None:
        for limit, count in known.usage.strikes.items():
            _render.line(f"  the limit of {limit} has struck {count} times: {REMEDY[limit]}")


def _tell_trouble(trouble: tuple[model.AuditRecord, ...], known: model.Inspection | None) -> None:
    if not trouble:
        _render.line("nothing was refused, nothing failed")
        return
    _render.line("\nwhat was refused, failed, or met a limit" if known is not None else "lately refused or failed")
    for record in trouble:
        box = f"  {record.sandbox}" if known is None and record.sandbox else ""
        _render.line(f"  {_render.when(record.at)}{_render.escape(box)}  {_words(record)}")
        if (reason := reason_of(record)) is not None:
            _render.line(f"    because: {_render.escape(reason)}")
        if (todo := _todo(record)) is not None:
            _render.line(f"    to do: {_render.escape(todo)}")


def _words(record: model.AuditRecord) -> str:
    return _render.escape(f"{record.action}  {command_of(record)}  {verdict_of(record)}")


def _todo(record: model.AuditRecord) -> str | None:
    limit = status_of(record).get("limit")
    if isinstance(limit, str):
        return REMEDY.get(limit)
    if record.allowed is False:
        if record.principal is None:  # the sandbox did it by itself: its own policy was asked
            return f"`paddock policy show {record.sandbox}` has what it is held to, `policy set` changes it"
        return f"ask for less, or have the rule {record.rule!r} changed: it is the policy of this state directory"
    return "paddock doctor" if record.error in ("level_unavailable", "not_configured", "keeper_unavailable") else None


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
