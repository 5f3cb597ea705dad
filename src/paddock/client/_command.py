"""Converts a caller's arguments to the values of actions."""

from __future__ import annotations

import os

from paddock.errors import CommandFailedError, InvalidArgumentError, ProgramNotExecutableError, ProgramNotFoundError
from paddock.model import ExecSpec, Limits, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import timedelta
    from typing import Any, TypeAlias, TypeVar

    from paddock.model import ExecResult, Level, Mount, PolicyDocument, PtySize

    F = TypeVar("F")
    Duration: TypeAlias = float | str | timedelta
    """Seconds, a timedelta, or a text such as "90", "5m", "2h"."""

    PolicySource: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | PolicyDocument
    """A path to a `paddock.yaml`, its text (which has a line break), plain values, or a document."""
    Network: TypeAlias = bool | Collection[str] | PolicySource | None
    """False, names of hosts and registries, or a policy."""


def opens(function: F) -> F:
    """Return the function. `aopens` changes those of the asynchronous client."""
    return function


def renamed(call: str, old: Any, **new: Any) -> tuple[Any, ...]:
    """Return the values of `new`, also those with names from before 1.0."""
    from paddock import _renamed

    return _renamed.keywords(call, old, **new)


_BY_CODE = {126: ProgramNotExecutableError, 127: ProgramNotFoundError}


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(value: Duration | None, name: str) -> float | None:
    """Return a duration in seconds: a number of them, a timedelta, or a text such as "90", "1.5s", "5m", "2h", "1d"."""
    if value is None or type(value) is float or type(value) is int:
        return value
    if isinstance(value, str):
        unit = _UNITS.get(value[-1:])
        try:
            return float(value if unit is None else value[:-1]) * (unit or 1.0)
        except ValueError:
            raise InvalidArgumentError(f"{name}={value!r} isn't a duration", hint=f'{name}=90, {name}="5m"') from None
    if not isinstance(value, bool):
        if isinstance(value, float | int):
            return float(value)
        if hasattr(value, "total_seconds"):
            return value.total_seconds()
    raise TypeError(f'{name} is {kind_of(value)}: write seconds, a timedelta or a text such as "5m"')


def required_seconds(value: Duration | None, name: str) -> float:
    """Convert a duration like `seconds`, but refuse None."""
    found = seconds(value, name)
    if found is None:
        raise TypeError(f'{name} is None: write seconds, a timedelta or a text such as "5m"')
    return found


def exec_spec(
    command: str | Sequence[str],
    *,
    cwd: str | None,
    env: Mapping[str, str] | None,
    user: str | None,
    timeout: Duration | None,
    stdin: bool,
    pty: PtySize | None = None,
) -> ExecSpec:
    """Return the spec of a command. A text is a line for bash (or sh), a sequence is a program with its arguments.

    Raise TypeError for other types, InvalidArgumentError for invalid values.
    """
    shell = isinstance(command, str)
    if shell:
        argv = ("/bin/bash", "-c", command)
    elif isinstance(command, bytes) or not hasattr(command, "__iter__"):
        raise TypeError(
            f'a command is a text for the shell or a list of texts, not {kind_of(command)}: "ls -l", ["ls"]'
        )
    else:
        argv = tuple(map(_argument, command))
    if not argv:
        raise InvalidArgumentError("a command is a text for the shell, or a list of at least one text", hint='["ls"]')
    env = texts(env, "env")
    if pty is not None and not hasattr(pty, "rows"):
        raise TypeError(f"pty is {kind_of(pty)}: write PtySize(rows=24, columns=80)")
    if any("\0" in text for text in (*argv, *env, *env.values())):
        raise InvalidArgumentError("a command, its arguments and its environment cannot hold NUL")
    limit = seconds(timeout, "timeout")
    if limit is not None and not limit > 0:
        raise InvalidArgumentError(f"timeout={timeout!r}: it must be more than 0, or None")
    return ExecSpec(argv=argv, cwd=cwd, env=env, user=user, timeout_seconds=limit, stdin=stdin, pty=pty, shell=shell)


def _argument(value: object) -> str:
    if isinstance(value, str):
        return value
    if hasattr(value, "__fspath__"):
        return os.fsdecode(value)  # pyright: ignore[reportArgumentType]
    raise TypeError(f"a command's arguments are texts, not {kind_of(value)}: write {str(value)!r}")


def texts(given: Mapping[str, str] | None, name: str) -> dict[str, str]:
    """Return a copy of a mapping of texts. TypeError names a key or value of another type."""
    if given is None:
        return {}
    if not hasattr(given, "items"):
        raise TypeError(f'{name} is {kind_of(given)}: write {{"NAME": "value"}}')
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{name}[{key!r}] is {kind_of(value)}: names and values are texts, so write {str(value)!r}")
    return dict(given)


def limits_of(given: Limits | Mapping[str, float] | None) -> Limits:
    """Return Limits from themselves or from a dict of some of their fields."""
    if given is None:
        return Limits()
    if isinstance(given, Limits):
        return given
    if not hasattr(given, "items"):
        raise TypeError(f'limits is {kind_of(given)}: write Limits(memory_mib=512) or {{"memory_mib": 512}}')
    unknown = [name for name in given if name not in Limits.__fields__]
    if unknown:
        raise TypeError(f"limits has no {unknown[0]!r}: there are {', '.join(Limits.__fields__)}")
    return Limits(**given)  # pyright: ignore[reportArgumentType]


def mounts_of(given: Sequence[Mount | str] | Mapping[str, str]) -> tuple[Mount, ...]:
    """Return mounts with absolute sources: from Mounts, directories, or a dict of directories to targets."""
    from paddock.model import Mount, MountMode

    if isinstance(given, str) or not hasattr(given, "__iter__"):
        raise TypeError(f"mounts is {kind_of(given)}: write [Mount(source={str(given)!r})] or [{str(given)!r}]")
    found: list[Mount] = []
    for one in given:
        if hasattr(given, "items"):
            one = Mount(source=os.fspath(one), target=given[one])  # pyright: ignore
        if not isinstance(one, Mount):
            if not isinstance(one, str) and not hasattr(one, "__fspath__"):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f'mounts holds {kind_of(one)}: write Mount(source="./project") or "./project"')
            one = Mount(source=os.fspath(one))
        try:
            mode = MountMode(one.mode)
        except ValueError:
            raise InvalidArgumentError(f"mode={one.mode!r} isn't a mode of mounts", hint="cow, ro or rw") from None
        found.append(replace(one, source=os.path.abspath(one.source), mode=mode))
    return tuple(found)


def reference(given: object, name: str) -> str | None:
    """Return the id or name of an argument, which may be an object with an id."""
    if given is None or isinstance(given, str):
        return given
    id = getattr(given, "id", None)
    if not isinstance(id, str):
        raise TypeError(f"{name} is {kind_of(given)}: write an id, a name or the object")
    return id


def template_of(template: str | None, image: str | None) -> str:
    """Return the template that `template` or `image` names. InvalidArgumentError for both."""
    for name, value in (("template", template), ("image", image)):
        if value is not None and not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{name} is {kind_of(value)}: write a text")
    if image is None:
        return absolute_template(template or "host")
    if template is not None:
        raise InvalidArgumentError("template and image are two ways to say the same", hint="give one of them")
    from paddock.model import is_image

    return absolute_template(image if is_image(image) else f"docker://{image}")


def network_of(network: Network, policy: PolicySource | None) -> PolicyDocument | None:
    """Return the policy of `network` or `policy`. Raises PolicyInvalidError, and InvalidArgumentError for both."""
    if network is False or network is None:
        return policy_document(policy)
    if policy is not None:
        raise InvalidArgumentError("network and policy both say what it may reach", hint="give one of them")
    if network is True:
        raise InvalidArgumentError(
            "network=True would let it reach everything",
            hint='name what it may reach: network=["pypi", "api.github.com"]',
        )
    if isinstance(network, list | tuple | set | frozenset):
        return policy_document({"egress": {"allow": [_rule(one) for one in network]}})
    return policy_document(network)  # pyright: ignore[reportArgumentType]


_REGISTRIES = ("pypi", "npm", "crates", "debian")


def _rule(name: object) -> dict[str, object]:
    if not isinstance(name, str):
        raise TypeError(f'network holds {kind_of(name)}: write names, as in ["pypi", "api.github.com"]')
    registry, equals, index = name.partition("=")
    if registry in _REGISTRIES:
        return {"registry": registry, "index": index} if equals else {"registry": registry}
    host, colon, port = name.rpartition(":")
    if colon and port.isdecimal():
        return {"host": host, "ports": [int(port)]}
    if "." not in name and name != "localhost":
        raise InvalidArgumentError(
            f"network holds {name!r}, which is neither a registry nor a host name with a dot",
            hint=f"registries are {', '.join(_REGISTRIES)}; a policy takes any host name",
        )
    if "/" in name:
        raise InvalidArgumentError(
            f"network holds {name!r}, which isn't the name of a host", hint="write the host alone; a policy has paths"
        )
    return {"host": name}


def level_of(level: Level | str | None) -> Level | None:
    """Return the level of that name. InvalidArgumentError suggests one for a word that others use."""
    if level is None:
        return None
    from paddock.model import Level

    meant = {"docker": "container", "podman": "container", "vm": "microvm", "firecracker": "microvm", "runsc": "gvisor"}
    try:
        return Level(level)
    except ValueError:
        near = meant.get(str(level).lower())
        hint = f"`{near}`?" if near else "paddock doctor"
        raise InvalidArgumentError(
            f"no level {level!r}: there are jail, gvisor, microvm and container", hint=hint
        ) from None


def kind_of(value: object) -> str:
    """Describe a value for a TypeError: `the int 5`, `None`, `a dict`."""
    if value is None:
        return "None"
    if isinstance(value, bool | int | float):
        return f"the {type(value).__name__} {value}"
    return f"a {type(value).__name__}"


def checked(result: ExecResult, command: str | Sequence[str]) -> ExecResult:
    """Return a successful result.

    Otherwise raise CommandFailedError, or its subclass for 126 and 127, the codes of a shell. `details["result"]` is
    the whole result.
    """
    if result.ok:
        return result
    what = command if isinstance(command, str) else " ".join(command)
    if result.limit is not None:
        ending = f"was ended by its limit of {result.limit}"
    elif result.signal is not None:
        ending = f"was ended by signal {result.signal}"
    else:
        ending = f"exited with {result.exit_code}"
    output = result.err.tail[-500:] or result.err.head[-500:] or result.out.tail[-500:] or result.out.head[-500:]
    kind = _BY_CODE.get(result.exit_code, CommandFailedError)
    text = output.decode("utf-8", "replace").strip()
    raise kind(f"{what[:200]!r} {ending}{': ' + text if text else ''}", result=result)


def absolute_template(template: str) -> str:
    """Return an image's path, which may be relative to this program's directory, as the service needs it."""
    if ":" not in template:
        return template
    from paddock.model import LOCAL_IMAGES

    if not template.startswith(LOCAL_IMAGES):
        return template
    transport, _, rest = template.partition(":")
    path, colon, tag = rest.partition(":")
    return f"{transport}:{os.path.abspath(path)}{colon}{tag}" if path else template


def policy_document(source: PolicySource | None) -> PolicyDocument | None:
    """PolicyInvalidError, with line and column where there is a text."""
    if source is None:
        return None
    from paddock.model import PolicyDocument
    from paddock.policy.network import load

    return source if isinstance(source, PolicyDocument) else load(source).document
