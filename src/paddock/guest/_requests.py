"""Reading the fields of a request: each has a type and bounds, and what is wrong is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._faults import Fault, encode
from ._frames import MAX_PATH, Json

if TYPE_CHECKING:
    from ._config import AgentConfig

_ID = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


def text(request: Json, key: str, default: str | None = None) -> str:
    value = request.get(key, default)
    if not isinstance(value, str):
        raise Fault("invalid_argument", f"{key} must be a string")
    return value


def optional_text(request: Json, key: str) -> str | None:
    return None if request.get(key) is None else text(request, key)


def number(request: Json, key: str, default: int | None = None, *, low: int = 0, high: int = (1 << 63) - 1) -> int:
    value = request.get(key, default)
    if type(value) is not int or not low <= value <= high:
        raise Fault("invalid_argument", f"{key} must be an integer from {low} to {high}")
    return value


def optional_number(request: Json, key: str, *, low: int = 0, high: int = (1 << 63) - 1) -> int | None:
    return None if request.get(key) is None else number(request, key, low=low, high=high)


def optional_seconds(request: Json, key: str) -> float | None:
    value = request.get(key)
    if value is not None and (type(value) not in (int, float) or not value > 0):
        raise Fault("invalid_argument", f"{key} must be seconds above 0")
    return value


def flag(request: Json, key: str) -> bool:
    value = request.get(key, False)
    if type(value) is not bool:
        raise Fault("invalid_argument", f"{key} must be true or false")
    return value


def texts(request: Json, key: str) -> tuple[str, ...]:
    value: Any = request.get(key, ())
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):  # pyright: ignore[reportUnknownVariableType]
        raise Fault("invalid_argument", f"{key} must be strings")
    return tuple(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def environment(request: Json) -> dict[bytes, bytes]:
    value: Any = request.get("env") or {}
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):  # pyright: ignore[reportUnknownVariableType]
        raise Fault("invalid_argument", "env must be strings by name")
    env: dict[bytes, bytes] = {}
    for name, item in value.items():  # pyright: ignore[reportUnknownVariableType]
        key = encode(name)  # pyright: ignore[reportUnknownArgumentType]
        if not key or b"=" in key:
            raise Fault("invalid_argument", f"env holds the name {name!r}")
        env[key] = encode(item)  # pyright: ignore[reportUnknownArgumentType]
    return env


def identifier(request: Json, key: str) -> str:
    value = text(request, key)
    if not 0 < len(value) <= 64 or not _ID.issuperset(value):
        raise Fault("invalid_argument", f"{key} must be 1 to 64 letters, digits and underscores")
    return value


def path(request: Json, key: str, config: AgentConfig) -> bytes:
    """A path as the sandbox knows it: absolute, relative ones below the working directory."""
    value = text(request, key)
    name = encode(value)
    if not name:
        raise Fault("invalid_argument", f"{key} is empty")
    if len(name) > MAX_PATH - 1:
        raise Fault("file", f"{key} is longer than {MAX_PATH - 1} bytes", name="ENAMETOOLONG")
    if not name.startswith(b"/"):
        name = encode(config.workdir).rstrip(b"/") + b"/" + name
    return name
