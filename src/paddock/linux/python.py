"""The paths at which our own programs, each in a separate Python, find their modules."""

from __future__ import annotations

import os
import sys

SOURCE = os.path.abspath(os.path.join(__file__, *[os.pardir] * 3))
"""The directory with the package."""


def module_path() -> list[str]:
    """Return the import path for paddock and its dependencies. It never has the current directory."""
    return [SOURCE, *(place for place in sys.path if os.path.isabs(place) and "-packages" in place)]
