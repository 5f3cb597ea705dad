"""Audit records in a few words, and what to do about a limit that was reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

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
