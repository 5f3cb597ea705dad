"""Records as events of the Open Cybersecurity Schema Framework 1.4, for collectors of many kinds of logs.

They are for reading, not for proof: `metadata.uid` and `unmapped.sha256` lead to the record.
https://schema.ocsf.io/1.4.0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ._record import Record, digest_of, read_record

VERSION = "1.4.0"
FILE, PROCESS, NETWORK, HTTP, DNS, API = 1001, 1007, 4001, 4002, 4003, 6003
_CATEGORY = {1: (1, "System Activity"), 4: (4, "Network Activity"), 6: (6, "Application Activity")}
_NAMES = {
    FILE: "File System Activity",
    PROCESS: "Process Activity",
    NETWORK: "Network Activity",
    HTTP: "HTTP Activity",
    DNS: "DNS Activity",
    API: "API Activity",
}
_OTHER = 99
_METHODS = {"CONNECT": 1, "DELETE": 2, "GET": 3, "HEAD": 4, "OPTIONS": 5, "POST": 6, "PUT": 7, "TRACE": 8, "PATCH": 9}
_FILES = {"read": 2, "list": 2, "stat": 8, "write": 3, "mkdir": 1, "copy": 1, "remove": 4, "move": 5, "set": 6}
_CALLS = {"create": 1, "open": 1, "set": 3, "get": 2, "list": 2, "delete": 4, "remove": 4, "kill": 4}

_UNMAPPED = ("of", "rule", "sandbox", "principal", "detail")


def to_ocsf(segment: str, raw: bytes) -> dict[str, Any] | None:
    """Return one line of a segment as one event, or None if it isn't a record."""
    record = read_record(raw)
    if record is None:
        return None
    event_class, activity, fields = _classify(record)
    category, category_name = _CATEGORY[event_class // 1000]
    denied, ok = record.allowed is False, record.ok
    unmapped = {name: value for name in _UNMAPPED if (value := getattr(record, name)) not in (None, {})}
    event: dict[str, Any] = {
        "class_uid": event_class,
        "class_name": _NAMES[event_class],
        "category_uid": category,
        "category_name": category_name,
        "activity_id": activity,
        "type_uid": event_class * 100 + activity,
        "time": record.time // 1_000_000,
        "severity_id": 3 if denied else 1,
        "status_id": 2 if denied or ok is False else 1 if ok else 0,
        "metadata": {
            "version": VERSION,
            "uid": f"{segment}:{record.seq}",
            "sequence": record.seq,
            "event_code": f"{record.kind}:{record.action}",
            "product": {"name": "paddock", "vendor_name": "paddock"},
        },
        **fields,
        "unmapped": {"sha256": digest_of(raw)} | unmapped,
    }
    if activity == _OTHER:
        event["activity_name"] = record.action or "other"
    if message := record.message or record.reason:
        event["message"] = message
    if record.error:
        event["status_code"] = record.error
    if record.allowed is not None:
        event |= {"action_id": 2 if denied else 1, "disposition_id": 2 if denied else 1}
    return event


def _classify(record: Record) -> tuple[int, int, dict[str, Any]]:
    """Return the class, the activity, and the fields of that class."""
    action, kind, detail = record.action, record.kind, record.detail
    noun, _, verb = action.partition(".")
    sandbox = {"uid": record.sandbox or ""}
    actor = {"user": {"uid": record.principal or "paddock"}}
    subject: dict[str, Any] = {"actor": actor, "device": {"type_id": 6, **sandbox}}
    if noun == "egress":
        return _egress(verb, record, sandbox)
    if noun in ("exec", "process"):
        spec = _mapping(detail.get("spec")) or detail
        raw_argv = spec.get("argv")
        argv = [str(word) for word in cast("Sequence[object]", raw_argv)] if isinstance(raw_argv, list) else []
        process = {"cmd_line": " ".join(argv), "name": argv[0] if argv else action}
        if isinstance(detail.get("pid"), int):
            process["pid"] = detail["pid"]
        launch = verb in ("run", "start") and kind != "outcome"
        activity = 1 if launch else 2 if kind == "outcome" or verb in ("signal", "end") else _OTHER
        return PROCESS, activity, {"process": process, **subject}
    if noun in ("file", "files", "tree"):
        path = str(detail.get("path") or detail.get("source") or "/")
        file = {"path": path, "name": path.rsplit("/", 1)[-1] or "/", "type_id": 0}
        transfer = {"tree.download": 2, "tree.upload": 3, "files.changed": 3}
        activity = transfer.get(action) or _FILES.get(verb, _OTHER)
        return FILE, activity, {"file": file, **subject}
    return (
        API,
        _CALLS.get(verb, _OTHER),
        {
            "api": {"operation": action, "service": {"name": "paddock"}},
            "actor": actor,
            "src_endpoint": {"uid": record.writer},
            "resources": [sandbox],
        },
    )


def _egress(verb: str, record: Record, sandbox: dict[str, str]) -> tuple[int, int, dict[str, Any]]:
    detail = record.detail
    endpoint = {
        key: detail[name] for key, name in (("hostname", "host"), ("ip", "address"), ("port", "port")) if name in detail
    }
    endpoints = {"src_endpoint": sandbox, "dst_endpoint": endpoint or {"uid": "of the decision"}}
    if verb == "name":
        return DNS, 1, {"query": {"hostname": str(detail.get("host", ""))}, **endpoints}
    if verb in ("request", "push"):
        method = str(detail.get("method") or ("POST" if verb == "push" else "")).upper()
        url = {"hostname": str(detail.get("host", ""))}
        url |= {key: detail[key] for key in ("port", "path") if detail.get(key) is not None}
        request = {"http_method": method, "url": url}
        return HTTP, _METHODS.get(method, _OTHER), {"http_request": request, **endpoints}
    if record.kind == "outcome":
        traffic = {"bytes_out": detail.get("sent", 0), "bytes_in": detail.get("received", 0)}
        return NETWORK, 3 if record.ok is False else 2, {"traffic": traffic, **endpoints}
    if verb in ("connect", "dial"):
        return NETWORK, 5 if record.allowed is False else 1, endpoints
    return NETWORK, _OTHER, endpoints


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}
