"""Whether what this process was started from is still the same: its modules, and the settings that it read."""

from __future__ import annotations

import os
import sys
from pathlib import Path


class Code:
    """paddock's modules and `settings` as they are now. A module that is loaded later is taken as it is then."""

    def __init__(self, settings: Path) -> None:
        self._settings = str(settings)
        self._seen: dict[str, tuple[int, int] | None] = {}
        self.has_changed()

    def has_changed(self) -> bool:
        """Takes less than a millisecond: one stat(2) for each module."""
        modules = tuple(sys.modules.items())
        files = [getattr(module, "__file__", None) for name, module in modules if name.partition(".")[0] == "paddock"]
        changed = False
        for path in (self._settings, *files):
            if path:
                now = _identity(path)
                changed |= self._seen.setdefault(path, now) != now
        return changed


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
