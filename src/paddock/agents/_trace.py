"""The trace of runs, one JSON line per event, written at once, and a report of it as a page.

The trace never contains configured secrets. The page quotes texts from models and sandboxes, so they can't imitate its
own text.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import msgspec

from paddock.errors import InvalidArgumentError

from ._tools import cut, digest

_SHORTEST_SECRET = 4
_EXCERPT_CHARS = 2000


class Trace:
    """A file of events, one JSON line each, which only its owner can read. Several runs may write at once.

    Args:
        path: The file, which it replaces.
        redact: Secrets of at least four characters. It replaces them in all that it writes.

    Raises:
        InvalidArgumentError: A secret is shorter: it would match everywhere.

    Example:
        ```python
        with Trace("run.jsonl", redact=["my-secret-key"]) as trace:
            run = Agent(model, trace=trace).run("Make the tests pass", sandbox)
        ```
    """

    def __init__(self, path: str | os.PathLike[str], *, redact: Iterable[str] = ()) -> None:
        self._secrets = sorted({secret for secret in redact if secret}, key=len, reverse=True)
        if any(len(secret) < _SHORTEST_SECRET for secret in self._secrets):
            raise InvalidArgumentError(f"a secret of fewer than {_SHORTEST_SECRET} characters cannot be redacted")
        self.path = Path(path)
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._began = time.monotonic()

    def event(self, kind: str, run: str, **fields: Any) -> None:
        """Write an event.

        Args:
            kind: Its kind, such as `note`.
            run: The name of its run.
            fields: Texts, numbers, and lists and dicts of them.

        Example:
            ```python
            with Trace("run.jsonl") as trace:
                trace.event("note", "run 1", text="half done")
            ```
        """
        line = {"at": round(time.monotonic() - self._began, 3), "run": run, "event": kind} | fields
        data = msgspec.json.encode(self._clean(line)) + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self._file, data) :]

    def text(self, kind: str, run: str, text: str, **fields: Any) -> None:
        """Write an event with a long text: its digest, its length, its head and its tail.

        Args:
            kind: Its kind, such as `note`.
            run: The name of its run.
            text: The text.
            fields: Texts, numbers, and lists and dicts of them.

        Example:
            ```python
            with Trace("run.jsonl") as trace:
                trace.text("note", "run 1", "a long text " * 1000)
            ```
        """
        clean = self._redacted(text)
        self.event(kind, run, text=cut(clean, _EXCERPT_CHARS), chars=len(clean), digest=digest(clean), **fields)

    def close(self) -> None:
        """Close the file.

        Example:
            ```python
            trace = Trace("run.jsonl")
            trace.close()
            ```
        """
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def __enter__(self) -> Trace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _redacted(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "[redacted]")
        return text.encode("utf-8", "replace").decode()  # lone surrogates are no JSON

    def _clean(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._redacted(value)
        if isinstance(value, Mapping):
            return {self._redacted(str(key)): self._clean(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self._clean(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        return value


_ARGUMENT_CHARS = 4000


def report(path: str | os.PathLike[str]) -> str:
    """Write a trace as Markdown, run by run.

    Args:
        path: A file that `Trace` has written.

    Returns:
        The page. It quotes all that came from a model or a sandbox.

    Raises:
        InvalidArgumentError: The file isn't a trace.

    Example:
        ```python
        with Trace("run.jsonl") as trace:
            trace.event("note", "run 1", text="half done")
        print(report("run.jsonl").splitlines()[0])  # # Trace
        ```
    """
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
        try:
            event = msgspec.json.decode(line, type=dict[str, Any])
            runs.setdefault(str(event["run"]), []).append(event)
        except (msgspec.MsgspecError, KeyError):
            raise InvalidArgumentError(
                f"{path}, line {number} is not an event of a trace", hint="name a file that an agent wrote as its trace"
            ) from None
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
    """Write a text of several lines as a block, which reads better than JSON."""
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
    """Return a block with a fence that is longer than any in it."""
    if not text:
        return ""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    printable = "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)
    return f"{fence}text\n{printable}\n{fence}"


def _inline(text: str) -> str:
    return "".join(c if c.isprintable() and c not in "`|<>[]*_#\\" else " " for c in text)
