"""Names from before 1.0. Each still works, and a DeprecationWarning says the new one.

Three of them stay silent, because published programs use them: `ttl_seconds=`, `timeout_seconds=` and `filesystem`.
Nothing imports this module until a program uses an old name.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn, TypedDict

    class OldTtl(TypedDict, total=False):
        ttl_seconds: float | None

    class OldTimeout(TypedDict, total=False):
        timeout_seconds: float | None

    class OldCreate(OldTtl, total=False):
        idle_seconds: float | None
        nested: int

    class OldProgress(TypedDict, total=False):
        moved: Any


KEYWORDS = {
    "idle_seconds": "idle_timeout",
    "moved": "on_progress",
    "nested": "max_children",
    "timeout_seconds": "timeout",
    "ttl_seconds": "ttl",
}
"""The new keyword of each old one."""

METHODS = {"open_read": ("open", "rb"), "open_write": ("open", "wb")}
"""The method of files that replaces each old one, and its mode."""

_SILENT = frozenset(("timeout_seconds", "ttl_seconds"))


def warn(old: str, new: str) -> None:
    """Warn the caller of the caller."""
    import sys
    import warnings

    depth, frame = 1, sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("paddock."):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(f"{old} is called {new} now", DeprecationWarning, stacklevel=depth)


def keywords(call: str, old: Any, **new: Any) -> tuple[Any, ...]:
    """Return the values of `new`, in order, with those that were given under their old names.

    `new` holds each new keyword's value and default, as `ttl=(ttl, 300.0)`. Raise TypeError for an unknown keyword, and
    where both names of one argument are given.
    """
    values = {name: value for name, (value, _) in new.items()}
    for name, value in old.items():
        target = KEYWORDS.get(name)
        if target not in values:
            unknown(call, name, values)
        if values[target] != new[target][1]:
            raise TypeError(f"{call}() got both {target!r} and its old name {name!r}: write {target}=")
        if name not in _SILENT:
            warn(f"{call}({name}=…)", f"{target}=")
        values[target] = value
    return tuple(values.values())


def unknown(call: str, name: str, known: Any) -> NoReturn:
    """Raise the TypeError of a keyword that `call` doesn't have."""
    raise TypeError(f"{call}() has no argument {name!r}")


def method(files: Any, name: str) -> Any:
    """Return what an old method of files did. AttributeError where there was none of that name."""
    if name not in METHODS:
        raise AttributeError(f"{type(files).__name__!r} object has no attribute {name!r}")
    target, mode = METHODS[name]

    def renamed(path: Any, *, mode: int | None = None, append: bool = False, **rest: Any) -> Any:
        how = "ab" if append else _mode
        warn(f"files.{name}(…)", f"files.{target}(…, {how!r})")
        return getattr(files, target)(path, how, **rest, **({} if mode is None else {"permissions": mode}))

    _mode = mode
    return renamed


def error(name: str, module: Any) -> Any:
    """Return the class of errors that was called `name`. AttributeError where there was none."""
    found = module.__dict__.get(f"{name}Error")
    if found is None or name.startswith("_"):
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
    warn(f"paddock.errors.{name}", f"{name}Error")
    return found
