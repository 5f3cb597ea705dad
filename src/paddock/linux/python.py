"""The paths at which our own programs, each in a separate Python, find their modules; and the end of imports."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

SOURCE = os.path.abspath(os.path.join(__file__, *[os.pardir] * 3))
"""The directory with the package."""


def module_path() -> list[str]:
    """Return the import path for paddock and its dependencies. It never has the current directory."""
    return [SOURCE, *(place for place in sys.path if os.path.isabs(place) and "-packages" in place)]


class SealedFinder:
    """The only remaining finder: after pivot_root a file with a given name may be the attacker's.

    `fatal`, for tests: end the process, because code could hide an ImportError.
    """

    def __init__(self, *, fatal: bool) -> None:
        self._fatal = fatal

    def find_spec(self, name: str, path: object = None, target: object = None) -> NoReturn:
        if self._fatal:
            os.write(2, f"import of {name} after the seal\n".encode())
            os._exit(77)
        raise ImportError(f"{name} is not imported yet, and nothing is imported any more", name=name)


def seal_imports(*, fatal: bool = False) -> None:
    """Seal imports: present modules stay usable, and this process and its forks can import no others.

    A first seal stays.
    """
    finders: list[Any] = sys.meta_path
    if not any(isinstance(finder, SealedFinder) for finder in finders):
        finders[:] = [SealedFinder(fatal=fatal)]
        sys.path_hooks.clear()
        sys.path_importer_cache.clear()
        sys.path.clear()
