"""The one door: everything that can be asked of paddock passes `Service.perform`.

The names are resolved on first use: `names` is for completion, which loads nothing else of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._clock import Clock as Clock
    from ._names import names as names
    from ._service import Service as Service

_HOMES = {
    "Clock": "_clock",
    "Service": "_service",
    "names": "_names",
}
__all__ = ["Clock", "Service", "names"]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'paddock.service' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{home}"), name)
