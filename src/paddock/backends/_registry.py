"""Load backends by name. Those of paddock are known without a scan of installed packages; others come from entry
points."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from paddock.errors import NotFoundError

from .base import Backend

GROUP = "paddock.backends"
OVER_THE_SUPERVISOR = ("container", "gvisor", "jail", "microvm")
"""Those that take `supervisor`, the one connection to it."""
_OURS = (*OVER_THE_SUPERVISOR, "process")


def names() -> tuple[str, ...]:
    """Return the names of all backends, those of paddock first."""
    from importlib.metadata import entry_points  # slow, and rarely needed

    others = sorted({point.name for point in entry_points(group=GROUP)}.difference(_OURS))
    return (*_OURS, *others)


def load(name: str) -> Callable[..., Backend]:
    """Return the class, or another callable that makes a backend. Raises NotFoundError."""
    if name in _OURS:
        module = import_module(f"paddock.backends.{name}")
        return cast("Callable[..., Backend]", getattr(module, f"{name.capitalize()}Backend"))
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        if point.name == name:
            return cast("Callable[..., Backend]", point.load())
    raise NotFoundError(f"no backend {name!r}", hint="backends: " + ", ".join(names()))
