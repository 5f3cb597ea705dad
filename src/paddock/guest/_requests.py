"""Reading the fields of a request: what is wrong is named."""

from __future__ import annotations

from ._faults import Fault
from ._frames import Json


def text(request: Json, key: str) -> str:
    value = request.get(key)
    if not isinstance(value, str):
        raise Fault("invalid_argument", f"{key} must be a string")
    return value
