"""Parses the command line, runs one verb, and turns an error into a line and a code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from paddock.errors import PaddockError

from . import _render
from ._verbs import WrongUsage, parse

FAILED = 125
WRONG_USAGE = 2
INTERRUPTED = 128 + signal.SIGINT
CLOSED_PIPE = 128 + signal.SIGPIPE


def run(arguments: Sequence[str] | None) -> int:
    """Run one verb. Without `arguments`, take this process's own."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    as_json = _asks_for_json(words)
    try:
        options = parse(words)
        as_json = getattr(options, "json", False)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _end)
        code = options.run(options)
        sys.stdout.flush()
        return code
    except WrongUsage as wrong:
        _render.problem("usage", wrong.message, wrong.hint, as_json=as_json)
        return WRONG_USAGE
    except PaddockError as error:
        _render.failure(error, as_json=as_json)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone. Without this, Python would notice again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except OSError as error:
        _render.failure(PaddockError(f"{error.filename or 'the machine'}: {error.strerror}"), as_json=as_json)
        return FAILED
    except Exception:  # ours: a bug report needs all of it
        import traceback

        traceback.print_exc()
        return FAILED


def _asks_for_json(words: list[str]) -> bool:
    """Return whether `--json` comes before the command, which may have an option of that name."""
    return "--json" in words[: words.index("--") if "--" in words else None]


def _end(number: int, frame: FrameType | None) -> None:
    """Raise an exception, so that context managers kill their processes."""
    raise SystemExit(128 + number)
