"""Actions, results and errors as JSON: what a client and the daemon say to each other.

Names from inside a sandbox need not be UTF-8 and are lone surrogates in a `str`. msgspec refuses those; the standard
library's `json` escapes them, so it takes over for the messages that have one.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias, TypeVar, cast, get_args

import msgspec

from paddock.errors import BY_CODE, InternalError, PaddockError

from .action import Action
from .actions import AnyAction
from .exec import PtySize
from .results import PromotionPlan

R = TypeVar("R")

_Limited: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class Call(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A method of a handle that an action returned: of a command, a stream, a watch."""

    handle: int
    method: str
    sent: _Limited | None = None
    """Bytes that the client has written into the stream, all told: so many have to arrive before its end."""
    number: int | None = None
    size: PtySize | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What an OPEN holds: an action, a call, or something about the daemon itself (`control`)."""

    action: AnyAction | None = None
    environment: dict[str, str] = {}
    """The caller's values of the variables that the action's policy takes secrets from."""
    has_input: bool = False
    """The input of `exec.run` is in the descriptor that came along: it was too long for a frame."""
    call: Call | None = None
    control: str | None = None


class Handle(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The REPLY of an action whose result is a handle. `streams` name the descriptors that came along, in order."""

    handle: int
    streams: tuple[str, ...] = ()
    id: str | None = None
    pid: int | None = None
    plan: PromotionPlan | None = None
    """What the caller writes on the host, from the directory that came along."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The client's first frame. `session` is a token that it made; each of its connections says the same."""

    protocol: int
    version: str
    session: str
    environment: dict[str, str] = {}
    """The variables by which a daemon is configured: the daemon says which of its own differ."""


class Welcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The daemon's answer."""

    protocol: int
    version: str
    instance: str
    pid: int
    differs: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    """What this client is told because it is the first one."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What `paddock daemon status` shows. `sessions` counts those of other processes than the caller's,
    `stops` how often the event loop stood still, and `last_stop` is the line of code that held it."""

    pid: int
    version: str
    instance: str
    started_at: float
    state_dir: str
    sessions: int
    requests: int
    idle_exit_seconds: float
    stops: int = 0
    last_stop: str = ""


class _Error(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    code: str
    message: str
    hint: str | None = None
    details: dict[str, Any] = {}


_encoder = msgspec.json.Encoder()
_error_decoder = msgspec.json.Decoder(_Error)


def encode(value: object) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode("ascii")


def decode(data: bytes, kind: type[R] | Any) -> R:
    """msgspec.ValidationError or DecodeError where `data` is not of that type."""
    try:
        return _decoder(kind).decode(data)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise msgspec.DecodeError(str(error)) from None
        return cast("R", msgspec.convert(found, kind))


def result_type(action: type[Action[Any]]) -> Any:
    """The R of `Action[R]`."""
    return _result_type(action)


def decode_result(data: bytes, action: type[Action[R]]) -> R:
    return decode(data, _result_type(action))


def encode_error(error: BaseException) -> bytes:
    """What the daemon's caller is told. Whatever is not ours is an InternalError, and says no more than its type."""
    if isinstance(error, OSError) and error.errno is not None:  # of a port's connection, or a pipe: the caller's to see
        return encode(_Error(code=f"errno:{error.errno}", message=error.strerror or str(error)))
    if not isinstance(error, PaddockError):
        error = InternalError(f"{type(error).__name__}: {error}"[:1000], hint="`paddock daemon logs` has the traceback")
    said = _Error(code=error.code, message=error.message, hint=error.hint, details=_plain(error.details))
    return encode(said)


def decode_error(data: bytes) -> Exception:
    """A PaddockError, or the OSError that it was."""
    try:
        said: _Error = decode(data, _Error)
    except msgspec.DecodeError as error:
        return InternalError(f"the daemon's error cannot be read: {error}")
    kind, _, number = said.code.partition(":")
    if kind == "errno" and number.isdecimal():
        return OSError(int(number), said.message)
    made = BY_CODE.get(said.code, PaddockError)(said.message, hint=said.hint)
    made.details = said.details
    return made


def _plain(details: Mapping[str, object]) -> dict[str, Any]:
    return cast("dict[str, Any]", msgspec.to_builtins(dict(details), enc_hook=str))


@functools.cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


@functools.cache
def _result_type(action: type[Action[Any]]) -> Any:
    bases = cast("tuple[Any, ...]", vars(action)["__orig_bases__"])
    return get_args(bases[0])[0]
