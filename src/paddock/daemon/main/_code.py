"""Tell whether the modules and settings that this process started with are still the same."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import paddock
from paddock.linux import inotify

_CHANGES = inotify.MODIFY | inotify.ATTRIB | inotify.MOVED_TO | inotify.MOVED_FROM | inotify.CREATE | inotify.DELETE


class Code:
    """Hold paddock's modules, all below `root`, and `settings` as they are now. A module loaded later counts as it is
    then."""

    def __init__(self, settings: Path, root: Path = Path(paddock.__file__).parent) -> None:
        self._settings = str(settings)
        self._seen: dict[str, tuple[int, int] | None] = {}
        self._loaded, self._is_touched = 0, True
        self._events = _watch(root)
        self.has_changed()

    def has_changed(self) -> bool:
        """Return whether a file differs. Asks for each module's only when the kernel has told of a change near them."""
        self._is_touched |= self._events < 0 or _has_news(self._events)
        files = [self._settings]
        if self._is_touched or self._loaded != len(sys.modules):
            modules = tuple(sys.modules.items())
            self._loaded = len(modules)
            ours = (module for name, module in modules if name.partition(".")[0] == "paddock")
            files += [path for module in ours if (path := getattr(module, "__file__", None))]
        changed = False
        for path in files:
            now = _identity(path)
            changed |= self._seen.setdefault(path, now) != now
        self._is_touched = changed
        return changed

    def close(self) -> None:
        if self._events >= 0:
            os.close(self._events)
            self._events = -1


def _watch(root: Path) -> int:
    """Return a descriptor that tells of changes in `root` and below it, or -1 where the kernel gives none."""
    events = -1
    try:
        events = inotify.watch(root, _CHANGES)
        for directory, below, _ in os.walk(root):
            below[:] = [name for name in below if name != "__pycache__"]
            inotify.add(events, Path(directory), _CHANGES)
    except OSError:
        if events >= 0:
            os.close(events)
        return -1
    return events


def _has_news(events: int) -> bool:
    has_changed = False
    try:
        while os.read(events, 1 << 16):
            has_changed = True
    except BlockingIOError:
        pass
    return has_changed


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
