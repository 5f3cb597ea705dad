"""Bodies of messages that a guest understands: fixed numbers, then fields. `native/schema.py` says which."""

from __future__ import annotations

from struct import Struct, error

from ._frames import WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, ClassVar, Self

_FIELD = Struct("<HHI")


class Field:
    __slots__ = ("kind", "limit", "name", "rows", "tag")

    def __init__(self, tag: int, name: str, kind: str, limit: int, rows: type[Message] | None = None) -> None:
        self.tag, self.name, self.kind, self.limit, self.rows = tag, name, kind, limit, rows


class Shape:
    __slots__ = ("by_tag", "fields", "names", "numbers", "zeros")

    def __init__(
        self, numbers: Struct, names: tuple[str, ...], zeros: tuple[tuple[int, int], ...], fields: tuple[Field, ...]
    ) -> None:
        self.numbers, self.names, self.zeros, self.fields = numbers, names, zeros, fields
        self.by_tag = {field.tag: field for field in fields}


class Message:
    """The base class of messages.

    `unpack` only accepts the output of `pack`, and raises WireError for the rest. `pack` refuses too long values.
    """

    SHAPE: ClassVar[Shape]

    def pack(self) -> bytes:
        shape = self.SHAPE
        parts = [shape.numbers.pack(*[getattr(self, name) for name in shape.names])]
        for field in shape.fields:
            value: Any = getattr(self, field.name)
            if field.rows is not None:
                for row in value:
                    _append(parts, field, row.pack())
            elif value:
                _append(parts, field, _encode(field.kind, value))
        return b"".join(parts)

    @classmethod
    def unpack(cls, body: bytes) -> Self:
        shape = cls.SHAPE
        try:
            values: dict[str, Any] = dict(zip(shape.names, shape.numbers.unpack_from(body), strict=True))
        except error:
            raise WireError(f"{cls.__name__} is too short") from None
        for start, end in shape.zeros:
            if body.count(0, start, end) != end - start:
                raise WireError(f"{cls.__name__} has bytes that must be zero")
        latest = 0
        for tag, value in _fields(body, shape.numbers.size):
            field = shape.by_tag.get(tag)
            if field is None or tag < latest or (tag == latest and field.rows is None) or len(value) > field.limit:
                raise WireError(f"{cls.__name__} has a field that it must not have")
            latest = tag
            if field.rows is not None:
                values[field.name] = (*values.get(field.name, ()), field.rows.unpack(value))
            elif not value:
                raise WireError(f"{cls.__name__} has an empty field")
            else:
                values[field.name] = _decode(field.kind, value)
        return cls(**values)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._values())
        return f"{type(self).__name__}({shown})"

    def _values(self) -> tuple[tuple[str, object], ...]:
        names = (*self.SHAPE.names, *(field.name for field in self.SHAPE.fields))
        return tuple((name, getattr(self, name)) for name in names)


def _append(parts: list[bytes], field: Field, value: bytes) -> None:
    if len(value) > field.limit:
        raise ValueError(f"{field.name} is longer than {field.limit} bytes")
    parts += (_FIELD.pack(field.tag, 0, len(value)), value, bytes(-len(value) % 8))


def _fields(body: bytes, position: int) -> Iterator[tuple[int, bytes]]:
    while position < len(body):
        if len(body) - position < _FIELD.size:
            raise WireError("a field is cut off")
        tag, zero, length = _FIELD.unpack_from(body, position)
        start = position + _FIELD.size
        position = start + length + -length % 8
        if zero or position > len(body) or any(body[start + length : position]):
            raise WireError("a field is not of this protocol")
        yield tag, body[start : start + length]


def _encode(kind: str, value: Any) -> bytes:
    if kind == "strings":
        text = b"\0".join(value) + b"\0"
        if text.count(0) != len(value):
            raise ValueError("a string holds a NUL")
        return text
    if kind in ("u32s", "u64s"):
        return Struct(f"<{len(value)}{'I' if kind == 'u32s' else 'Q'}").pack(*value)
    if kind == "text" and b"\0" in value:
        raise ValueError("a text holds a NUL")
    return bytes(value)


def _decode(kind: str, value: bytes) -> Any:
    if kind == "strings":
        if value[-1]:
            raise WireError("the last string is cut off")
        return tuple(value[:-1].split(b"\0"))
    if kind in ("u32s", "u64s"):
        size = 4 if kind == "u32s" else 8
        if len(value) % size:
            raise WireError("an array is cut off")
        return Struct(f"<{len(value) // size}{'I' if kind == 'u32s' else 'Q'}").unpack(value)
    if kind == "text" and b"\0" in value:
        raise WireError("a text holds a NUL")
    return value
