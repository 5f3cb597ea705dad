"""One contender in a process of its own: `python -m bench.worker MODULE:CLASS ARGUMENTS`, told what to do on stdin.

It says what it has to say on stdout, a line of JSON each: first `{"ready": ...}`, then one answer per request.
`{"count": 10, "interval": 0.1}` asks for a block of ten, one every tenth of a second. Errors are `{"error": ...}`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from bench.account import Account

TOTAL = "total"


class Subject(Protocol):
    """What is measured. Made once; everything that shall not be measured is done by then."""

    def once(self) -> dict[str, float]:
        """Does it, once: seconds by name. `TOTAL` is the whole; others are parts of it."""
        ...

    def close(self) -> None: ...


def main(target: str, arguments: str) -> int:
    voice = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # peers print; what they print is no answer

    def say(message: dict[str, Any]) -> None:
        voice.write(json.dumps(message) + "\n")

    try:
        module, _, name = target.partition(":")
        subject: Subject = getattr(importlib.import_module(module), name)(**json.loads(arguments))
    except Exception as error:
        say({"error": _in_a_line(error)})
        return 1
    try:
        state = os.environ.get("PADDOCK_STATE_DIR")
        account = Account(Path(state) if state else None)
        paddock = sys.modules.get("paddock")
        source = paddock.__file__ if paddock else None
        say({"ready": True, "version": getattr(subject, "version", None), "source": source})
        for line in sys.stdin:
            say(block(subject, account, **json.loads(line)))
    except Exception as error:
        say({"error": _in_a_line(error)})
        return 1
    finally:
        subject.close()
    return 0


def block(subject: Subject, account: Account, count: int, interval: float | None = None) -> dict[str, Any]:
    samples: list[dict[str, float]] = []
    before = account.read()
    start = time.perf_counter()
    for number in range(count):
        if interval is not None:
            time.sleep(max(0.0, start + number * interval - time.perf_counter()))
        samples.append(subject.once())
    after = account.read()
    cpu = {name: seconds - before[name] for name, seconds in after.items()}
    return {"samples": samples, "cpu": cpu, "exact": account.exact}


def _in_a_line(error: Exception) -> str:
    first, *_ = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {first[:300]}"


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
