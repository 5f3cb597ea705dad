"""Names from before 1.0. Each still works, and a DeprecationWarning says the new one.

Three of them stay silent, because published programs use them: `ttl_seconds=`, `timeout_seconds=` and `filesystem`.
A name that another library has for the same thing gets an error with ours. Nothing imports this module until a
program uses such a name.
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

_ENV = dict.fromkeys(("env_vars", "environment", "envs"), 'env={"NAME": "value"}')
_RUN = {**_ENV, **dict.fromkeys(("workdir", "working_dir"), 'cwd="/workspace"')}
_OTHERS = {
    "create": {
        **dict.fromkeys(("cpu", "cpus"), 'limits={"cpus": 2}'),
        **dict.fromkeys(("memory", "memory_mb", "memory_mib"), 'limits={"memory_mib": 512}'),
        **_ENV,
        "metadata": 'labels={"name": "value"}',
        "timeout": 'ttl="5m"',
        "volumes": 'mounts=["."]',
    },
    "exec": {**_RUN, "stdin": 'input="a text"'},
    "start": _RUN,
}
"""Keywords of other libraries, by call: what to write in place of them."""

_ATTRIBUTES = {
    **dict.fromkeys(("commands", "execute", "process", "run", "run_command"), "exec(…), start(…)"),
    **dict.fromkeys(("close", "delete", "destroy", "stop", "terminate"), "kill()"),
    **dict.fromkeys(("get_host", "get_preview_link", "tunnels"), "forward(port)"),
    "fs": "files",
    "ls": "list(path)",
    "mkdir": "make_dir(path)",
    "is_running": "state",
    "rename": "move(source, destination)",
    "rm": "remove(path)",
    "set_timeout": "extend(ttl)",
}
"""Methods of other libraries: what to use in place of them. Of two, the one that the object has."""

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
            unknown(call, name)
        if values[target] != new[target][1]:
            raise TypeError(f"{call}() got both {target!r} and its old name {name!r}: write {target}=")
        if name not in _SILENT:
            warn(f"{call}({name}=…)", f"{target}=")
        values[target] = value
    return tuple(values.values())


def unknown(call: str, name: str) -> NoReturn:
    """Raise the TypeError of a keyword that `call` doesn't have."""
    ours = _OTHERS.get(call, {}).get(name)
    raise TypeError(f"{call}() has no argument {name!r}" + (f": write {ours}" if ours else ""))


def attribute(of: object, name: str) -> NoReturn:
    """Raise the AttributeError of a name that an object doesn't have."""
    ours = _ATTRIBUTES.get(name, "")
    if name == "delete" and hasattr(type(of), "remove"):
        ours = "remove(path)"
    told = f": write .{ours}" if ours and hasattr(type(of), ours.partition("(")[0]) else ""
    raise AttributeError(f"{type(of).__name__!r} object has no attribute {name!r}{told}")


def method(files: Any, name: str) -> Any:
    """Return what an old method of files did. AttributeError where there was none of that name."""
    if name not in METHODS:
        attribute(files, name)
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
