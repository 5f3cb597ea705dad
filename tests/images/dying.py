"""What a worker does in place of laying a layer, in tests."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from paddock.storage.pool._jobs import MEMORY_BYTES
from paddock.storage.templates.images import _building

STEP = 0
"""Before which operation on files `dying` dies."""
lay: Any = _building._lay  # pyright: ignore[reportPrivateUsage]


def dying(*arguments: object) -> object:
    """As by a kill -9. It may signal nobody, itself included."""
    left = STEP

    def count(event: str, _: tuple[object, ...]) -> None:
        nonlocal left
        if event.startswith(("open", "os.", "ctypes.call_function")):
            left -= 1
            if left == 0:
                ctypes.string_at(0)

    sys.addaudithook(count)
    return lay(*arguments)


def endless(*_: object) -> None:
    while True:
        pass


def huge(*_: object) -> int:
    return len(bytearray(MEMORY_BYTES + 1))
