"""A trace as a page to read. What came from a model or a sandbox is quoted: it cannot pass for the page's own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from paddock.errors import InvalidArgument

_ARGUMENT_CHARS = 4000


def report(path: str | os.PathLike[str]) -> str:
    """Markdown, run by run, of what `Trace` has written. InvalidArgument if that is none."""
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
        try:
            event = msgspec.json.decode(line, type=dict[str, Any])
            runs.setdefault(str(event["run"]), []).append(event)
        except (msgspec.MsgspecError, KeyError):
            raise InvalidArgument(f"{path}, line {number}: that is no event of a trace") from None
    parts = ["# Trace", _overview(runs)]
    for run, events in runs.items():
        parts.append(f"## {_inline(run)}")
        parts += [part for event in events for part in _event(event)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _overview(runs: Mapping[str, list[Mapping[str, Any]]]) -> str:
    rows = ["| run | ended | steps | tokens in | out | USD | seconds |", "|---|---|---|---|---|---|---|"]
    for run, events in runs.items():
        end = next((event for event in events if event.get("event") == "end"), None)
        if end is None:
            continue
        usd = "" if end.get("usd") is None else f"{end['usd']:.4f}"
        values = (run, end.get("stop"), end.get("steps"), end.get("input_tokens"), end.get("output_tokens"), usd)
        rows.append("| " + " | ".join(_inline(str(value)) for value in (*values, end.get("seconds"))) + " |")
    return "\n".join(rows) if len(rows) > 2 else ""


def _event(event: Mapping[str, Any]) -> Iterator[str]:
    kind, at = event.get("event"), event.get("at")
    text = str(event.get("text") or "")
    if kind == "start":
        yield f"{at} s: {_inline(str(event.get('model')))} starts."
    elif kind == "told":
        yield f"**Told** ({at} s)"
        yield _quoted(text)
    elif kind == "reply":
        tokens = f"{event.get('input_tokens')} tokens in, {event.get('output_tokens')} out"
        cut = ", cut off" if event.get("cut") else ""
        yield f"**Said** ({at} s, took {event.get('seconds')} s, {tokens}{cut})"
        yield _quoted(text)
        for call in event.get("calls") or ():
            yield f"Calls {_inline(str(call.get('tool')))}:"
            yield _quoted(_arguments(str(call.get("arguments"))))
    elif kind == "observation":
        how = "failed" if event.get("failed") else "observed"
        what = f"{event.get('chars')} characters, {event.get('digest')}"
        yield f"**{_inline(str(event.get('tool')))} {how}** ({at} s, {what})"
        yield _quoted(text)
    elif kind == "diff":
        yield f"**Judged** ({at} s): {_inline(str(event.get('outcome')))}"
        yield _quoted(text)
    elif kind == "end":
        error = f": {_inline(str(event['error']))}" if event.get("error") else ""
        yield f"**Ended** ({at} s): {_inline(str(event.get('stop')))}{error}"
    else:
        rest = {key: value for key, value in event.items() if key not in ("at", "run", "event")}
        yield f"**{_inline(str(kind))}** ({at} s)"
        yield _quoted(json.dumps(rest, indent=1, ensure_ascii=False))


def _arguments(text: str) -> str:
    """A text of several lines reads better as such than as JSON."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if not isinstance(value, dict):
        return text
    items = cast("dict[str, object]", value)
    lines = [f"{key}: {item if isinstance(item, str) else json.dumps(item)}" for key, item in items.items()]
    return "\n".join(lines)[:_ARGUMENT_CHARS]


def _quoted(text: str) -> str:
    """A block with a fence that is longer than any in it."""
    if not text:
        return ""
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    fence = "`" * max(3, longest + 1)
    printable = "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)
    return f"{fence}text\n{printable}\n{fence}"


def _inline(text: str) -> str:
    return "".join(c if c.isprintable() and c not in "`|<>[]*_#\\" else " " for c in text)
