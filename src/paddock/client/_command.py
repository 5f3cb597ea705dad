"""From what a caller writes to what is asked of the daemon."""

from __future__ import annotations

import os

from paddock.errors import CommandFailed, InvalidArgument, ProgramNotExecutableError, ProgramNotFoundError
from paddock.model import ExecSpec, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, TypeAlias

    from paddock.model import ExecResult, Mount, PolicyDocument, PtySize

    PolicySource: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | PolicyDocument
    """A path to a `paddock.yaml`, its text (which has a line break), plain values, or a document."""

_BY_CODE = {126: ProgramNotExecutableError, 127: ProgramNotFoundError}


def exec_spec(
    command: str | Sequence[str],
    *,
    cwd: str | None,
    env: Mapping[str, str] | None,
    user: str | None,
    timeout_seconds: float | None,
    stdin: bool,
    pty: PtySize | None = None,
) -> ExecSpec:
    """A text is a line for `/bin/sh -c`; a sequence is executed as it is. InvalidArgument."""
    argv = ("/bin/sh", "-c", command) if isinstance(command, str) else tuple(command)
    if not argv or not all(isinstance(argument, str) for argument in argv):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgument("a command is a text for the shell, or a sequence of at least one text", hint='["ls"]')
    if any("\0" in text for text in (*argv, *(env or {}), *(env or {}).values())):
        raise InvalidArgument("a command, its arguments and its environment cannot hold NUL")
    if timeout_seconds is not None and not timeout_seconds > 0:
        raise InvalidArgument(f"timeout_seconds is {timeout_seconds}: it must be more than 0, or None")
    return ExecSpec(
        argv=argv,
        cwd=cwd,
        env=dict(env or {}),
        user=user,
        timeout_seconds=timeout_seconds,
        stdin=stdin,
        pty=pty,
    )


def checked(result: ExecResult, command: str | Sequence[str]) -> ExecResult:
    """Raises CommandFailed, or for 126 and 127 what a shell says by them; `details["result"]` is the whole result."""
    if result.ok:
        return result
    what = command if isinstance(command, str) else " ".join(command)
    if result.limit is not None:
        ending = f"was ended by its limit of {result.limit}"
    elif result.signal is not None:
        ending = f"was ended by signal {result.signal}"
    else:
        ending = f"exited with {result.exit_code}"
    said = result.err.tail[-500:] or result.err.head[-500:] or result.out.tail[-500:] or result.out.head[-500:]
    kind = _BY_CODE.get(result.exit_code, CommandFailed)
    raise kind(f"{what[:200]!r} {ending}", hint=said.decode("utf-8", "replace").strip() or None, result=result)


def absolute(mount: Mount) -> Mount:
    """Its source, which may be relative to this program's directory, as the service needs it."""
    return replace(mount, source=os.path.abspath(mount.source))


def absolute_template(template: str) -> str:
    """An image's path, which may be relative to this program's directory, as the service needs it."""
    if ":" not in template:
        return template
    from paddock.model import LOCAL_IMAGES

    if not template.startswith(LOCAL_IMAGES):
        return template
    transport, _, rest = template.partition(":")
    path, colon, tag = rest.partition(":")
    return f"{transport}:{os.path.abspath(path)}{colon}{tag}" if path else template


def policy_document(source: PolicySource | None) -> PolicyDocument | None:
    """PolicyInvalid, with line and column where there is a text."""
    if source is None:
        return None
    from paddock.model import PolicyDocument
    from paddock.policy.network import load

    return source if isinstance(source, PolicyDocument) else load(source).document
