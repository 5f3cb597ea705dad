"""Parse, run one verb, turn what went wrong into a line and a code."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType

from paddock import __version__
from paddock.errors import PaddockError

from . import _audit, _cp, _create, _doctor, _exec, _kill, _ls, _render, _run

VERBS = (_run, _create, _exec, _ls, _kill, _cp, _doctor, _audit)

FAILED = 125
INTERRUPTED = 128 + signal.SIGINT
CLOSED_PIPE = 128 + signal.SIGPIPE


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="paddock",
        description="Disposable computers for coding agents, on this machine.",
        epilog="Exit codes: the command's own; 125 paddock failed; 126 not executable; 127 not found; 2 wrong usage.",
        allow_abbrev=False,
    )
    root.add_argument("--version", action="version", version=f"paddock {__version__}")
    verbs = root.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in VERBS:
        verb.add(verbs)
    return root


def run(arguments: Sequence[str] | None) -> int:
    options = parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    as_json = getattr(options, "json", False)
    try:
        code = options.run(options)
        sys.stdout.flush()
        return code
    except PaddockError as error:
        _render.failure(error, as_json=as_json)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output is gone; so that Python does not find that out again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except OSError as error:
        _render.failure(PaddockError(f"{error.filename or 'the machine'}: {error.strerror}"), as_json=as_json)
        return FAILED
    except Exception:  # ours: whoever reports it needs all of it
        traceback.print_exc()
        return FAILED


def _end(number: int, frame: FrameType | None) -> None:
    """As an exception, so that what has to die is killed on the way out."""
    raise SystemExit(128 + number)
