"""paddock: disposable, forkable, observable computers for AI coding agents.

The names are resolved on first use, so that `import paddock.linux` in the keeper
and `paddock --help` pay for nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paddock.client import AsyncSandbox as AsyncSandbox
    from paddock.client import Sandbox as Sandbox
    from paddock.errors import PaddockError as PaddockError
    from paddock.model import ExecResult as ExecResult
    from paddock.model import Limits as Limits

__version__ = "0.1.0.dev0"
__all__ = ["AsyncSandbox", "ExecResult", "Limits", "PaddockError", "Sandbox", "__version__"]

_HOMES = {
    "AsyncSandbox": "paddock._compose",
    "Sandbox": "paddock._compose",
    "PaddockError": "paddock.errors",
    "ExecResult": "paddock.model",
    "Limits": "paddock.model",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'paddock' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
