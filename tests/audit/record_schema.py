"""As much of JSON Schema as the one of records uses."""

from __future__ import annotations

import re
from typing import Any

from tools.record_kinds import schema

_TYPES: dict[str, type] = {"string": str, "integer": int, "boolean": bool, "object": dict}
_KNOWN = {"type", "minimum", "pattern", "const", "enum", "description"}


def wrong(record: dict[str, Any]) -> str | None:
    """Why no alternative takes it; None: exactly one does."""
    problems = [_wrong_object(one, record) for one in schema()["oneOf"]]
    return None if problems.count(None) == 1 else f"{record}: {problems}"


def _wrong_object(shape: dict[str, Any], record: dict[str, Any]) -> str | None:
    assert shape["type"] == "object"
    assert shape["additionalProperties"] is False
    if missing := set(shape["required"]) - record.keys():
        return f"{missing} is missing"
    if unknown := record.keys() - shape["properties"].keys():
        return f"{unknown} is unknown"
    bad = [name for name, value in record.items() if not _fits(shape["properties"][name], value)]
    return f"{bad} is of the wrong kind" if bad else None


def _fits(shape: dict[str, Any], value: object) -> bool:
    assert shape.keys() <= _KNOWN, "this reader does not know it"
    kind = _TYPES.get(shape.get("type", ""))
    return (
        (kind is None or type(value) is kind)
        and ("const" not in shape or value == shape["const"])
        and ("enum" not in shape or value in shape["enum"])
        and ("minimum" not in shape or (isinstance(value, int) and value >= shape["minimum"]))
        and ("pattern" not in shape or re.search(shape["pattern"], str(value)) is not None)
    )
