"""Load backends by name. Those of paddock are known without a scan of installed packages; others come from entry
points."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from paddock.errors import NotFoundError

from ._base import Backend

GROUP = "paddock.backends"
_OURS = {
    "container": ("paddock.backends.container", "ContainerBackend"),
    "gvisor": ("paddock.backends.gvisor", "GvisorBackend"),
    "jail": ("paddock.backends.jail", "JailBackend"),
    "microvm": ("paddock.backends.microvm", "MicrovmBackend"),
    "process": ("paddock.backends.process", "ProcessBackend"),
}
OVER_THE_SUPERVISOR = frozenset({"container", "gvisor", "jail", "microvm"})
"""Those that take `supervisor`, the one connection to it."""


def names() -> tuple[str, ...]:
    """Return the names of all backends, those of paddock first."""
    from importlib.metadata import entry_points  # slow, and rarely needed

    others = sorted({point.name for point in entry_points(group=GROUP)} - _OURS.keys())
    return (*_OURS, *others)


def load(name: str) -> Callable[..., Backend]:
    """Return the class, or another callable that makes a backend. Raises NotFoundError."""
    if name in _OURS:
        module, attribute = _OURS[name]
        return cast("Callable[..., Backend]", getattr(import_module(module), attribute))
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        if point.name == name:
            return cast("Callable[..., Backend]", point.load())
    raise NotFoundError(f"no backend {name!r}", hint="backends: " + ", ".join(names()))
