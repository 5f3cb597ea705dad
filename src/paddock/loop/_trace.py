"""What happened, one JSON line per event, written at once. Configured secrets never get there."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from paddock.errors import InvalidArgument

from ._observation import cut, digest

_SHORTEST_SECRET = 4
_EXCERPT_CHARS = 2000


class Trace:
    """`Trace("run.jsonl", redact=[api_key])`. Made anew, readable by its owner only. Several runs may write at once.

    In what is written each of `redact` is replaced before anything is cut, so that no half of it is left.
    InvalidArgument for one of fewer than four characters: it would be found everywhere.
    """

    def __init__(self, path: str | os.PathLike[str], *, redact: Iterable[str] = ()) -> None:
        self._secrets = sorted({secret for secret in redact if secret}, key=len, reverse=True)
        if any(len(secret) < _SHORTEST_SECRET for secret in self._secrets):
            raise InvalidArgument(f"a secret of fewer than {_SHORTEST_SECRET} characters cannot be redacted")
        self.path = Path(path)
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._began = time.monotonic()

    def event(self, kind: str, run: str, **fields: Any) -> None:
        """`run` says whose. Values are texts, numbers, and lists and dicts of them."""
        line = {"at": round(time.monotonic() - self._began, 3), "run": run, "event": kind} | fields
        data = msgspec.json.encode(self._clean(line)) + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self._file, data) :]

    def text(self, kind: str, run: str, text: str, **fields: Any) -> None:
        """A long text: its digest, its length, its head and tail."""
        clean = self._redacted(text)
        self.event(kind, run, text=cut(clean, _EXCERPT_CHARS), chars=len(clean), digest=digest(clean), **fields)

    def close(self) -> None:
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
