"""Switching imports off: after pivot_root a file that is found by name is the attacker's."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn


class Sealed:
    """The only finder that is left. `fatal`, for tests: code that hides an ImportError must not hide this one."""

    def __init__(self, *, fatal: bool) -> None:
        self._fatal = fatal

    def find_spec(self, name: str, path: object = None, target: object = None) -> NoReturn:
        if self._fatal:
            os.write(2, f"import of {name} after the seal\n".encode())
            os._exit(77)
        raise ImportError(f"{name} is not imported yet, and nothing is imported any more", name=name)


def seal_imports(*, fatal: bool = False) -> None:
    """What is imported stays usable; nothing else ever is, in this process and its forks. A first seal stays."""
    finders: list[Any] = sys.meta_path
    if not any(isinstance(finder, Sealed) for finder in finders):
        finders[:] = [Sealed(fatal=fatal)]
        sys.path_hooks.clear()
        sys.path_importer_cache.clear()
        sys.path.clear()
