"""What the process of one command leaves out: most live for a quarter of a second."""

from __future__ import annotations

import gc
import sys

_YOUNG_OBJECTS = 100_000  # imports make some 250,000 that stay: at Python's 700 they are looked through again and again


def hurry() -> None:
    """Before a verb that talks to a service. For a process that is ours alone.

    msgspec takes two names from typing_extensions where there is one, and the same from `typing` where not; to import
    it takes a tenth of all that `paddock run` does. Whoever asks for it later gets it.
    """
    gc.set_threshold(_YOUNG_OBJECTS)
    if "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # pyright: ignore[reportArgumentType]
    try:
        import msgspec  # noqa: F401  # pyright: ignore[reportUnusedImport]
    finally:
        del sys.modules["typing_extensions"]


def leave() -> None:
    """Last of all: what is still there goes with the process, and the interpreter need not look for cycles in it."""
    gc.freeze()
