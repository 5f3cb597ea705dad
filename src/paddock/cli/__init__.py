"""The command line: one file for each group of verbs, over the synchronous client.

It imports each module only when a verb needs it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn


_TICK_SECONDS = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: the command's own, 125 where paddock itself failed, 2 for wrong usage."""
    from ._main import run

    return run(arguments)


def script() -> NoReturn:
    """Run `paddock` as a separate process.

    It is so short that the garbage collector doesn't run before its end. All files are closed by then. So it skips the
    interpreter's shutdown, which takes as long as the imports of a verb.
    """
    import gc
    import io
    import os
    import signal
    import sys

    gc.set_threshold(100_000)
    # PYTHONUNBUFFERED: of a write that a signal cuts short, Python would drop the rest.
    if isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):
        whole = io.BufferedWriter(io.FileIO(1, "w", closefd=False))
        sys.stdout = io.TextIOWrapper(whole, sys.stdout.encoding, sys.stdout.errors, line_buffering=True)
    # Python acts on a signal that comes just before a call blocks when that call returns (PEP 475): a tick ends it.
    signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, _TICK_SECONDS, _TICK_SECONDS)
    try:
        code = main()
    finally:
        # If SystemExit does shut the interpreter down, it no longer answers signals, and the next tick kills it.
        signal.setitimer(signal.ITIMER_REAL, 0)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError):
            pass  # it was closed before we were started; its reader has gone
    os._exit(code)
