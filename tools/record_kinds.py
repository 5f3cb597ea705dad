"""All kinds of records that there are, as JSON Schema: what others may rely on."""

from __future__ import annotations

from typing import Any

from paddock.model.any_action import BY_TAG

EGRESS = {
    "name": "a query to the resolver, once for each name and revision",
    "connect": "a connection that the sandbox opened, or one through it as a proxy",
    "dial": "one address outside, before the first packet to it",
    "request": "a request of HTTP",
    "push": "a push of git: `refs` are all that it changes, each with its old and its new object",
    "registry": "a page or a file of a registry: `package`, its `digest`, and that of the list of `malware`",
    "secret": "a secret or its placeholder where it may not go: a finding, always denied",
}
"""Decisions of the gateway, by no principal: `egress.…`. Their outcomes are of the action `egress`."""

DOOR = {
    "command": "what a sandbox's policy says of a command that was asked for from outside: `of` is the action's number",
    "file": "the same of a file",
}
"""Decisions by a sandbox's policy on what a principal asks for: `policy.…`, without a separate outcome."""

EVENTS = {
    "approval.asked": "a person is asked",
    "approval.used": "a person's yes was used up",
    "approval.webhook": "nobody could be told that a person is asked",
    "audit.removed": "closed parts of the log are removed: they are too old, or the log is too large",
    "audit.retention": "closed parts of the log could not be packed or removed",
    "audit.broken": "a segment does not follow from what was signed before",
    "audit.close": "its writer let the segment go",
    "audit.open": "a writer took the segment; `heads` are the last records of the others, `signed` is the last head",
    "audit.unsigned": "why heads are not signed",
    "base.unfinished": "what a dead service had begun to make was deleted",
    "egress.crowded": "`refused` connections were reset since the last such record: the sandbox had too many already",
    "egress.malware": "a list of malware was read, or could not be",
    "egress.offline": "a sandbox has no way out, until there is a gateway again",
    "egress.origin": "which process made the connection `flow`, which `decision` is about",
    "egress.world": "the mocks of a sandbox began or ended",
    "files.changed": "what a sandbox has changed: how many files, the first of them, and the digest of the whole list",
    "process.end": "a process inside has ended: its `code`, or the signal",
    "process.gap": "why some of what was started inside is not in here",
    "process.start": "a program was started inside",
    "process.watch": "processes inside are `watched` from now on, or no longer; `why` not, if they can't be",
    "recovery.failed": "a step of the recovery at the daemon's start failed; the others were taken",
    "sandbox.ended": "a sandbox ended by itself, by its TTL or at a limit",
    "sandbox.orphan": "a sandbox without a row was killed",
    "sandbox.slept": "a sandbox that nobody used is paused, or was found so",
    "sandbox.woken": "a paused sandbox goes on, since somebody uses it",
    "secret.late": "a secret could not be fetched anew in time",
    "snapshot.unfinished": "what a dead service had begun to make was deleted",
    "submodule.empty": "a submodule could not be had",
    "sweep.failed": "a sweep did not come to its end; it comes round again",
    "task.failed": "background work failed",
    "tree.orphan": "a tree that nothing needs was deleted",
    "workshop": "commands that ran over a tree of somebody's, in a sandbox of their own",
    "workshop.orphan": "a workshop of a dead service was removed",
    "workspace.evicted": "a workspace was archived, for room",
    "workspace.push": "a push, when all that could be checked was",
    "workspace.unfinished": "a workspace of a dead service was put right",
}

_TEXT: dict[str, Any] = {"type": "string"}
_NUMBER: dict[str, Any] = {"type": "integer", "minimum": 0}
_DIGEST: dict[str, Any] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_ALL: dict[str, Any] = {
    "seq": {**_NUMBER, "description": "position in its segment, from 0"},
    "time": {"type": "integer", "description": "nanoseconds since the epoch, by a clock that people can set"},
    "boottime": {**_NUMBER, "description": "nanoseconds since the machine began"},
    "writer": {**_TEXT, "description": "pid and a random number, one per opened log"},
    "sandbox": {**_TEXT, "description": "its id; of a decision, what was asked for"},
    "message": _TEXT,
    "detail": {"type": "object"},
    "prev": {**_DIGEST, "description": "`sha256` of the record before; zeros in the first"},
    "sha256": {**_DIGEST, "description": "of the line up to this field, and a closing brace"},
}
_DECISION: dict[str, Any] = {
    "principal": {**_TEXT, "description": "who asked; absent from the gateway's"},
    "allowed": {"type": "boolean"},
    "rule": _TEXT,
    "reason": _TEXT,
}
_OUTCOME: dict[str, Any] = {
    "of": {**_NUMBER, "description": "`seq` of the decision, in the same segment"},
    "ok": {"type": "boolean"},
    "error": {**_TEXT, "description": "a code of paddock.errors, cancelled, abandoned, or a class of Python's"},
}
_REQUIRED = ("seq", "time", "boottime", "writer", "kind", "action", "prev", "sha256")


def actions() -> tuple[str, ...]:
    """Return what a principal can ask for."""
    return tuple(sorted(BY_TAG))


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of one line of a segment."""
    decisions = (*actions(), *(f"egress.{kind}" for kind in EGRESS), *(f"policy.{kind}" for kind in DOOR))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A record of paddock's audit log",
        "oneOf": [
            _kind("decision", decisions, _DECISION, ("allowed", "rule")),
            _kind("outcome", (*actions(), "egress"), _OUTCOME, ("of", "ok")),
            _kind("event", tuple(EVENTS), {}, ()),
        ],
    }


def _kind(kind: str, actions: tuple[str, ...], more: dict[str, Any], required: tuple[str, ...]) -> dict[str, Any]:
    own = {"kind": {"const": kind}, "action": {"enum": sorted(actions)}}
    return {
        "type": "object",
        "properties": {**_ALL, **own, **more},
        "required": [*_REQUIRED, *required],
        "additionalProperties": False,
    }
