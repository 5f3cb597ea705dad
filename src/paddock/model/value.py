"""The base class of values and actions: frozen, keyword-only, compared by their fields.

A program that makes one sandbox would need more time to import `dataclasses` or msgspec than for the sandbox. For both,
a value is a dataclass all the same: `dataclasses.replace` works, and msgspec encodes and decodes it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from typing import Any, Protocol, Self, TypeVar, dataclass_transform

    class Replaceable(Protocol):
        def __replace__(self, **changes: Any) -> Self: ...

    T = TypeVar("T", bound=Replaceable)
else:

    def dataclass_transform(**_):
        return lambda kind: kind


class DatetimeField:
    """A time of a value as a datetime in UTC, beside the field that has it in seconds since the epoch."""

    def __init__(self, field: str) -> None:
        self._field = field

    def __get__(self, value: Value, kind: type[Value]) -> datetime:
        return _utc(getattr(value, self._field))


class OptionalDatetimeField:
    """The same of a field that may be None."""

    def __init__(self, field: str) -> None:
        self._field = field

    def __get__(self, value: Value, kind: type[Value]) -> datetime | None:
        seconds = getattr(value, self._field)
        return None if seconds is None else _utc(seconds)


def _utc(seconds: float) -> datetime:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC)


REQUIRED = object()
"""The default of a field that has none."""


class _DataclassFields:
    """Makes the `dataclasses.Field` objects of a class when something asks for them."""

    def __get__(self, value: Value | None, kind: type[Value]) -> dict[str, Any]:
        from dataclasses import field, fields, make_dataclass

        kind.__annotations__ = {name: field_type(kind, name) for name in kind.__fields__}
        parts: list[Any] = []
        for name, default in kind.__fields__.items():
            how: dict[str, Any] = (
                {} if default is REQUIRED else {"default_factory": dict} if default == {} else {"default": default}
            )
            parts.append((name, kind.__annotations__[name], field(**how)))
        # These dataclasses have no instances: only their fields count. Without a docstring they would get their
        # signature for one.
        own = {"__doc__": kind.__name__}
        like = make_dataclass(kind.__name__, parts, namespace=own, init=False, repr=False, eq=False, kw_only=True)
        made = {part.name: part for part in fields(like)}
        kind.__dataclass_fields__ = made
        return made


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Value:
    """The base of all values.

    `__fields__` has the default of each field, in the order of the class. `__required__` fields have none. Each value
    gets a separate dict for `__dicts__`. `forbid_unknown_fields` concerns its JSON, as in msgspec.
    """

    if TYPE_CHECKING:
        __fields__: dict[str, Any]
        __required__: tuple[str, ...]
        __dicts__: tuple[str, ...]
        __forbids_unknown__: bool
        __dataclass_fields__: dict[str, Any]
    else:
        __fields__ = {}
        __required__ = __dicts__ = ()
        __dataclass_fields__ = _DataclassFields()

    def __init_subclass__(cls, *, forbid_unknown_fields: bool = False) -> None:
        cls.__forbids_unknown__ = forbid_unknown_fields
        cls.__fields__ = fields = dict(cls.__fields__)
        for name in cls.__annotations__:
            fields[name] = cls.__dict__.get(name, REQUIRED)
            if fields[name] is not REQUIRED:
                delattr(cls, name)
        cls.__required__ = tuple(name for name, default in fields.items() if default is REQUIRED)
        cls.__dicts__ = tuple(name for name, default in fields.items() if type(default) is dict)

    def __init__(self, *unnamed: Any, **given: Any) -> None:
        if unnamed:
            names = ", ".join(f"{name}=…" for name in [*self.__fields__][: len(unnamed)])
            raise TypeError(
                f"{type(self).__name__}() takes its arguments by name: write {type(self).__name__}({names})"
            )
        fields, own = self.__fields__, self.__dict__
        own.update(fields)
        for name in self.__dicts__:
            own[name] = {}
        own.update(given)
        for name in self.__required__:
            if own[name] is REQUIRED:
                raise TypeError(f"{type(self).__name__}() lacks the argument {name!r}")
        if len(own) > len(fields):
            unknown = next(name for name in given if name not in fields)
            raise TypeError(f"{type(self).__name__}() has no argument {unknown!r}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: make another one with `replace`")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if type(self) is type(other) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, name) for name in self.__fields__)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__fields__)})"

    def __rich_repr__(self) -> Iterator[tuple[str, object]]:
        return ((name, getattr(self, name)) for name in self.__fields__)

    def __replace__(self, **changes: Any) -> Self:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.__dict__.update(changes)
        if len(made.__dict__) > len(self.__dict__):
            unknown = next(name for name in changes if name not in self.__dict__)
            raise TypeError(f"{type(self).__name__}() has no argument {unknown!r}")
        return made


def replace(value: T, /, **changes: Any) -> T:
    """Another one like `value`, with `changes`. Takes msgspec's structs too."""
    return value.__replace__(**changes)


def field_type(kind: type[Value], name: str) -> Any:
    """Return the type that a field's annotation means."""
    owner, annotation = _annotation(kind, name)
    return meaning(annotation, owner.__module__)


def is_optional(kind: type[Value], name: str) -> bool:
    """Tell whether the field may be None, without resolving a name."""
    return str(_annotation(kind, name)[1]).endswith("| None")


def meaning(annotation: Any, module: str) -> Any:
    """Return a type, or the type that its text names.

    Names that `module` imports for type checkers only come from the model.
    """
    names: Any = _Names()
    return eval(annotation, vars(sys.modules[module]), names) if isinstance(annotation, str) else annotation


def _annotation(kind: type[Value], name: str) -> tuple[type, Any]:
    owner = next(base for base in kind.__mro__ if name in base.__dict__.get("__annotations__", ()))
    return owner, owner.__annotations__[name]


class _Names:
    def __getitem__(self, name: str) -> Any:
        import paddock.model

        if name in paddock.model.HOMES:
            return getattr(paddock.model, name)
        if name in ("Any", "Literal"):
            import typing

            return getattr(typing, name)
        raise KeyError(name)
