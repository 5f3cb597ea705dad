"""The JSON of actions, results and errors between client and daemon.

A message is as strict as msgspec's: exact types, no NaN, and no unknown fields in classes that forbid them. msgspec
itself converts policies. This module imports it only for those. Names from inside a sandbox may not be UTF-8, and then
have lone surrogates in a `str`. The encoder writes a message with one in ASCII.
"""

from __future__ import annotations

import binascii
import json
from enum import Enum
from math import isfinite
from types import GenericAlias, NoneType, UnionType

from paddock.errors import BY_CODE, InternalError, PaddockError

from .action import Action
from .value import REQUIRED, Value, field_type, is_optional, meaning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias, TypeVar, cast

    from .exec import PtySize
    from .results import PromotionPlan, Published, PullRequestPlan, PushPlan

    R = TypeVar("R")
    Reader: TypeAlias = Callable[[Any], Any]
else:

    def cast(_, value):
        return value


class Call(Value, forbid_unknown_fields=True):
    """A method of a handle that an action returned: of a command, a stream, a watch."""

    handle: int
    method: str
    sent: int | None = None
    """Bytes of the stream that the client has already."""
    number: int | None = None
    seconds: float | None = None
    """How long to wait."""
    size: PtySize | None = None
    published: Published | None = None
    """The result of a push or a pull request by the caller's process."""

    def __post_init__(self) -> None:
        if self.sent is not None and self.sent < 0:
            raise ValueError("Expected `sent` >= 0")


class Request(Value, forbid_unknown_fields=True):
    """The content of an OPEN frame: an action, a call, or a request to the daemon itself (`control`)."""

    action: Action[Any] | None = None
    environment: dict[str, str] = {}
    """The caller's values of the variables that the action's policy takes secrets from."""
    directories: dict[str, tuple[int, int]] = {}
    """Device and inode of each source of a mount: the caller's mount namespace may be another one."""
    has_input: bool = False
    """The input of `exec.run` is in the descriptor that came along: it was too long for a frame. That of `exec.attach`
    comes through it: a pipe of the client's."""
    call: Call | None = None
    control: str | None = None
    id: str | None = None
    """The client's id for an action that changes something, so that it can repeat the request.

    For `exec.run` and `exec.start` it is the command's id. For `sandbox.create` it is a key that outlives the daemon.
    """


class Handle(Value):
    """The REPLY of an action whose result is a handle. `streams` name the descriptors of the frame, in order."""

    handle: int
    streams: tuple[str, ...] = ()
    id: str | None = None
    pid: int | None = None
    plan: PromotionPlan | None = None
    """The changes that the caller writes on the host, from the directory whose descriptor came with the frame."""
    push: PushPlan | None = None
    pull_request: PullRequestPlan | None = None


class Hello(Value):
    """The client's first frame. `session` is a token of the client, the same on all its connections."""

    protocol: int
    version: str
    session: str
    environment: dict[str, str] = {}
    """The variables that configure a daemon. The daemon's answer names the ones that differ from its own."""


class Welcome(Value):
    """The daemon's answer."""

    protocol: int
    version: str
    instance: str
    pid: int
    differs: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    """Messages for the first client of the daemon."""


class Status(Value):
    """The result of `paddock daemon status`.

    `sessions` counts the sessions of other processes than the caller's. `stops` counts the pauses of the event loop,
    and `last_stop` is the line of code that caused one. A program that ends `control_group` ends the daemon. It is ""
    where that would be the whole machine's.
    """

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
    control_group: str = ""


class _Error(Value):
    code: str
    message: str
    hint: str | None = None
    details: dict[str, Any] = {}


class Malformed(ValueError):
    """The bytes don't decode to the expected type."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.path = ""

    def __str__(self) -> str:
        return f"{self.args[0]} - at `${self.path}`" if self.path else str(self.args[0])

    def below(self, place: str) -> Malformed:
        self.path = place + self.path
        return self


class WrongType(Malformed):
    """A value has another type than its field."""

    def __init__(self, wanted: str, found: object) -> None:
        self.wanted, self.found = wanted, _NAMES[type(found)]
        super().__init__(f"Expected `{wanted}`, got `{self.found}`")


def encode(value: object) -> bytes:
    try:
        return _encode(value).encode()
    except UnicodeEncodeError:
        return _encode_ascii(value).encode()


def encode_whole(value: object) -> bytes:
    """Encode a value with all fields, for a reader that has only the standard library."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"), default=plain).encode()


def decode(data: bytes, kind: type[R] | Any) -> R:
    """Malformed where `data` is not of that type."""
    try:
        found = _parse(data.decode())
    except (ValueError, RecursionError) as error:
        raise Malformed(f"JSON is malformed: {error}") from None
    return _reader(kind)(found)


def result_type(action: type[Action[Any]]) -> Any:
    """Return the R of `Action[R]`."""
    return meaning(action.RESULT, action.__module__)


def decode_result(data: bytes, action: type[Action[R]]) -> R:
    return decode(data, result_type(action))


def encode_error(error: BaseException) -> bytes:
    """Encode an error for the daemon's caller. One of another kind becomes an InternalError with its type."""
    if isinstance(error, OSError) and error.errno is not None:  # of a port's connection, or a pipe: the caller's to see
        return encode(_Error(code=f"errno:{error.errno}", message=error.strerror or str(error)))
    if not isinstance(error, PaddockError):
        error = InternalError(f"{type(error).__name__}: {error}"[:1000], hint="`paddock daemon logs` has the traceback")
    details = {name: _told(value) for name, value in error.details.items()}
    return encode(_Error(code=error.code, message=error.message, hint=error.hint, details=details))


def decode_error(data: bytes) -> Exception:
    """Return a PaddockError, or the OSError that it was."""
    try:
        said: _Error = decode(data, _Error)
    except Malformed as error:
        return InternalError(f"the daemon's error cannot be read: {error}")
    kind, _, number = said.code.partition(":")
    if kind == "errno" and number.isdecimal():
        return OSError(int(number), said.message)
    made = BY_CODE.get(said.code, PaddockError)(said.message, hint=said.hint)
    made.details = said.details
    return made


def plain(value: object) -> object:
    """Return the dict or the text that stands for something that JSON lacks. TypeError."""
    if isinstance(value, Value):
        return {"action": value.TAG, **value.__dict__} if isinstance(value, Action) else value.__dict__
    if isinstance(value, bytes):
        return binascii.b2a_base64(value, newline=False).decode()
    if hasattr(value, "__struct_fields__"):
        import msgspec

        return msgspec.to_builtins(value)
    raise TypeError(f"a message cannot hold {type(value).__name__}")


def _short(value: object) -> object:
    """Convert a value like `plain`, without the fields that equal their defaults. The reader has the same defaults."""
    if type(value) is bytes or not isinstance(value, Value):
        return plain(value)
    defaults = value.__fields__
    held = {name: item for name, item in value.__dict__.items() if item != defaults[name]}
    return {"action": value.TAG, **held} if isinstance(value, Action) else held


def _told(value: object) -> object:
    """Convert a detail of an error to a JSON value, or to text if it has no JSON form."""
    if value is None or isinstance(value, str | int | Value):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [_told(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {str(name): _told(item) for name, item in cast("dict[object, object]", value).items()}
    return value if isinstance(value, float) and isfinite(value) else str(value)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_short).encode
_encode_ascii = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=_short).encode
_parse = json.JSONDecoder(parse_constant=_refuse).decode

# Readers: one for each type, made on its first use. Each takes the output of `json`, and returns the value or raises.


_NAMES: dict[Any, str] = {
    dict: "object",
    list: "array",
    str: "str",
    int: "int",
    float: "float",
    bool: "bool",
    NoneType: "null",
}


def _entries(found: object) -> dict[str, Any]:
    if type(found) is not dict:
        raise WrongType("object", found)
    return cast("dict[str, Any]", found)


def _exactly(kind: type) -> Reader:
    def read(found: object) -> object:
        if type(found) is not kind:
            raise WrongType(_NAMES[kind], found)
        return found

    return read


def _float(found: object) -> float:
    if type(found) is not float and type(found) is not int:
        raise WrongType("float", found)
    try:
        number = float(found)
    except OverflowError:
        number = float("inf")
    if not isfinite(number):
        raise Malformed("Number out of range")
    return number


def _int(found: object) -> int:
    if type(found) is not int:
        raise WrongType("int", found)
    if abs(found) >> 64:  # the kernel's numbers have 64 bits, and formatting one of 400 digits raises
        raise Malformed("Number out of range")
    return found


def _bytes(found: object) -> bytes:
    if type(found) is not str:
        raise WrongType("bytes", found)
    try:
        return binascii.a2b_base64(found, strict_mode=True)
    except ValueError:
        raise Malformed("Invalid base64 encoded string") from None


_readers: dict[Any, Reader] = {
    **{kind: _exactly(kind) for kind in (str, bool, NoneType)},
    int: _int,
    None: _exactly(NoneType),
    float: _float,
    bytes: _bytes,
    object: lambda found: found,
}


def _reader(kind: Any) -> Reader:
    read = _readers.get(kind)
    if read is None:
        read = _readers[kind] = _new_reader(kind)
    return read


def _new_reader(kind: Any) -> Reader:
    origin: Any = getattr(kind, "__origin__", None)
    of: tuple[Any, ...] = getattr(kind, "__args__", ())
    if isinstance(kind, UnionType) and NoneType in of and len(of) == 2:
        return _optional(_reader(of[0] if of[1] is NoneType else of[1]))
    if isinstance(kind, GenericAlias):
        if origin is tuple and of[1:] == (...,):
            return _array(of[0])
        if origin is dict:
            return _mapping(*of)
        if origin is Action:
            return _action
    elif isinstance(kind, type):
        if issubclass(kind, Value):
            return _object(kind)
        if issubclass(kind, Enum):
            return _member(kind)
    return _foreign(kind)


def _optional(read: Reader) -> Reader:
    return lambda found: None if found is None else read(found)


def _array(of: Any) -> Reader:
    read = _reader(of)

    def read_all(found: Any) -> tuple[Any, ...]:
        if type(found) is not list:
            raise WrongType("array", found)
        try:
            return tuple(map(read, cast("list[Any]", found)))
        except Malformed as error:
            raise error.below("[...]") from None

    return read_all


def _mapping(key: Any, of: Any) -> Reader:
    read_key, read = _reader(key), _reader(of)

    def read_all(found: object) -> dict[Any, Any]:
        try:
            return {read_key(name): read(item) for name, item in _entries(found).items()}
        except Malformed as error:
            raise error.below("[...]") from None

    return read_all


def _member(kind: type[Enum]) -> Reader:
    def read(found: object) -> Enum:
        if type(found) is not str:
            raise WrongType("str", found)
        try:
            return kind(found)
        except ValueError:
            raise Malformed(f"Invalid enum value {found!r}") from None

    return read


def _object(kind: type[Value]) -> Reader:
    # Look a field's type up when it first has a value: a policy's type imports msgspec.
    readers: dict[str, Reader] = {}
    optional = {name for name in kind.__fields__ if is_optional(kind, name)}
    checked = getattr(kind, "__post_init__", None)

    def read(given: object) -> Value:
        found = _entries(given)
        value = kind.__new__(kind)
        own = value.__dict__
        own.update(kind.__fields__)
        for name in kind.__dicts__:
            own[name] = {}
        for name, item in found.items():
            if name not in own:
                continue
            if item is None and name in optional:
                own[name] = None
                continue
            if name not in readers:
                readers[name] = _reader(field_type(kind, name))
            try:
                own[name] = readers[name](item)
            except Malformed as error:
                raise error.below(f".{name}") from None
        for name in kind.__required__:
            if own[name] is REQUIRED:
                raise Malformed(f"Object missing required field `{name}`")
        if kind.__forbids_unknown__ and not found.keys() <= own.keys():
            raise Malformed(f"Object contains unknown field `{min(found.keys() - own.keys())}`")
        if checked is not None:
            try:
                checked(value)
            except ValueError as error:
                raise Malformed(str(error)) from None
        return value

    return read


def _action(given: object) -> Action[Any]:
    from .any_action import BY_TAG

    found = _entries(given)
    tag = found.pop("action", None)
    if tag is None:
        raise Malformed("Object missing required field `action`")
    kind = BY_TAG.get(tag) if isinstance(tag, str) else None
    if kind is None:
        raise Malformed(f"Invalid value {tag!r}").below(".action")
    return _reader(kind)(found)


def _foreign(kind: Any) -> Reader:
    """Return a reader for a type that only `typing` and msgspec support."""
    import msgspec

    def read(found: object) -> object:
        try:
            return msgspec.convert(found, kind)
        except msgspec.ValidationError as error:
            raise Malformed(str(error)) from None

    return read
