# ruff: noqa: S608 (statements are put together from names of columns, never from values)
"""Tables whose rows are values of one type."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec

from paddock.model.value import Value

T = TypeVar("T", bound=msgspec.Struct)
_encode = msgspec.json.Encoder().encode


class Table(Generic[T]):
    """Convert rows of type `row`, whose first field has what callers see. A column has the name of a field of either.

    The columns in `json` hold JSON: their fields aren't plain values.
    """

    def __init__(self, name: str, row: type[T], seen: type[Value], json: tuple[str, ...]) -> None:
        self.name, self._row, self._json = name, row, json
        self._first, *own = row.__struct_fields__
        self._own = frozenset(own)
        self._columns = (*own, *seen.__fields__)
        self.select = f"SELECT {_listed(self._columns)} FROM {name}"
        self.insert = f"INSERT INTO {name} ({_listed(self._columns)}) VALUES (:{', :'.join(self._columns)})"

    def update(self, row: T, *columns: str) -> tuple[str, dict[str, object]]:
        """Return the statement that writes these columns of a row, and the values in it."""
        assignments = ", ".join(f'"{name}" = :{name}' for name in columns)
        return f"UPDATE {self.name} SET {assignments} WHERE id = :id", self._of(row, ("id", *columns))

    def values(self, row: T) -> dict[str, object]:
        """Return the values of a row, by column."""
        return self._of(row, self._columns)

    def row(self, *values: Any) -> T:
        """Return the row of these values, in the order of `select`."""
        found = dict(zip(self._columns, values, strict=True))
        for name in self._json:
            found[name] = found[name] and msgspec.json.decode(found[name])
        return msgspec.convert({**found, self._first: found}, self._row, strict=False)

    def _of(self, row: T, columns: Iterable[str]) -> dict[str, object]:
        seen = getattr(row, self._first)
        return {name: _plain(getattr(row if name in self._own else seen, name)) for name in columns}


def _plain(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, Enum):
        return value.value
    return value if isinstance(value, str) else _encode(value).decode()


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in columns)
