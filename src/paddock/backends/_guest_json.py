"""The dialect of the Python guest: bodies are JSON (`docs/protocol.md`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar, cast

import msgspec

from paddock.errors import (
    BY_CODE,
    InvalidArgument,
    PaddockError,
    ProgramNotExecutableError,
    ProgramNotFoundError,
    SandboxError,
)
from paddock.guest._frames import (
    CHUNK,
    MAX_DEPTH,
    MAX_REQUEST,
    STDOUT,
    VERSION,
    WINDOW,
    Decoder,
    Json,
    Kind,
    ProtocolError,
    data_header,
    pack,
    pack_close,
    pack_credit,
    pack_eof,
)
from paddock.model import Action, ExecId, ExecInfo, ExecSpec, ExitStatus, Limit, PtySize

from ._guest_files import perform

if TYPE_CHECKING:
    from ._guest_connection import GuestConnection
    from ._guest_dialect import Frame

T = TypeVar("T")

# A guest says what went wrong inside. It can't make us say that the machine, the policy or the keeper failed.
_CODES = frozenset(
    {"sandbox", "file", "not_found", "already_exists", "invalid_argument", "invalid_state", "unsupported"}
)
_NOT_EXECUTABLE = ("EACCES", "ENOEXEC", "ENAMETOOLONG", "ELOOP", "EISDIR")
_MAX_MESSAGE = 2000
_MOST_ANSWERS = 64
"""Of a list of commands: each has 200 KiB."""


class Started(msgspec.Struct, frozen=True):
    pid: int


class Exited(msgspec.Struct, frozen=True):
    code: int | None
    signal: int | None
    duration_seconds: float
    limit: Literal["time", "memory", "processes", "disk", "inodes"] | None = None
    """`time` is the one ceiling that a guest keeps by itself. Of the others the kernel and the host know, but behind a
    wall with a kernel of its own."""


class _Survivors(msgspec.Struct, frozen=True):
    survivors: int


class _ErrorBody(msgspec.Struct, frozen=True):
    code: str
    message: str
    errno: str | None = None


class _ExecItem(msgspec.Struct, frozen=True):
    id: str
    argv: tuple[str, ...]
    pid: int
    started_at: float
    background: bool
    status: Exited | None


class _ExecList(msgspec.Struct, frozen=True):
    execs: tuple[_ExecItem, ...]
    before: int | None = None
    """There are more, which were started before that one."""


def sound_status(status: ExitStatus, connection: GuestConnection) -> ExitStatus:
    """Breaks the connection if no kernel reports it."""
    code, number = status.code, status.signal
    sound = (
        (code is None) != (number is None)
        and (code is None or 0 <= code <= 255)
        and (number is None or 1 <= number <= 64)
        and 0 <= status.duration_seconds < 1e9
    )
    if not sound:
        raise connection.breach("an exit status that no kernel reports")
    if status.limit not in (None, Limit.TIME) and not connection.tells:
        raise connection.breach("a ceiling of which a guest knows nothing")
    return status


class _Agents(msgspec.Struct, frozen=True):
    agents: dict[str, int | None]


class _Lost(msgspec.Struct, frozen=True):
    alive: bool
    signal: int | None


class _JsonDialect:
    def __init__(self) -> None:
        self.ping: Json = {"op": "ping"}

    window, chunk = WINDOW, CHUNK
    most_requests = 1 << 32  # what is too many for it, it refuses
    nothing, started, attached, exited, killed = Json, Started, Started, Exited, _Survivors

    def decoder(self) -> Decoder:
        return Decoder()

    def hello(self) -> bytes:
        return pack(Kind.HELLO, 0, {"version": VERSION})

    def greeting(self, frame: Frame) -> int | None:
        if frame.kind is not Kind.HELLO or frame.body.get("version") != VERSION:
            raise ProtocolError(f"no greeting in version {VERSION}")
        pid = frame.body.get("pid")
        return pid if type(pid) is int else None

    def open(self, channel: int, request: Mapping[str, object], descriptors: int) -> bytes:
        body = {**request, "fds": descriptors} if descriptors else request
        _require_sendable(body)
        try:
            return pack(Kind.OPEN, channel, body)
        except ProtocolError:
            raise InvalidArgument(
                f"a request of more than {MAX_REQUEST >> 20} MiB", hint="pass it on stdin or as a file"
            ) from None

    def refusal(self, request: object) -> Callable[[Json], PaddockError]:
        return _error

    def read(self, body: Json, type: type[T]) -> T:
        try:
            return msgspec.convert(body, type)
        except msgspec.ValidationError as error:
            raise ProtocolError(f"an answer with {error}") from None

    data = staticmethod(data_header)
    eof = staticmethod(pack_eof)
    credit = staticmethod(pack_credit)
    close = staticmethod(pack_close)

    def exec(self, spec: ExecSpec, id: ExecId, user: str | None, *, background: bool) -> Json:
        request: Json = {"op": "exec", "id": id, "argv": spec.argv}
        if spec.env:
            request["env"] = spec.env
        if spec.cwd is not None:
            request["cwd"] = spec.cwd
        if user is not None:
            request["user"] = user
        if spec.stdin:
            request["stdin"] = True
        if spec.pty is not None:
            request["pty"] = {"rows": spec.pty.rows, "columns": spec.pty.columns}
        if background:
            request["background"] = True
            if spec.timeout_seconds is not None:
                request["timeout_seconds"] = spec.timeout_seconds
        return request

    def attach(self, id: ExecId, *, silent: bool = False) -> Json:
        request: Json = {"op": "attach", "id": id}
        return request | {"silent": True} if silent else request

    def output(self, id: ExecId, stream: int) -> tuple[Json, int]:
        return {"op": "output", "id": id, "stream": stream}, STDOUT

    def signal(self, id: ExecId, number: int) -> Json:
        return {"op": "signal", "id": id, "signal": number}

    def kill(self, id: ExecId) -> Json:
        return {"op": "kill_exec", "id": id}

    def resize(self, id: ExecId, size: PtySize) -> Json:
        return {"op": "resize", "id": id, "rows": size.rows, "columns": size.columns}

    def status(self, exited: Exited, connection: GuestConnection) -> ExitStatus:
        limit = None if exited.limit is None else Limit(exited.limit)
        status = ExitStatus(
            code=exited.code, signal=exited.signal, limit=limit, duration_seconds=exited.duration_seconds
        )
        return sound_status(status, connection)

    async def execs(self, connection: GuestConnection) -> list[ExecInfo]:
        found: list[ExecInfo] = []
        request: Json = {"op": "execs"}
        for _ in range(_MOST_ANSWERS):
            answer = await connection.open(request).call(_ExecList)
            found += [self._info(item, connection) for item in answer.execs]
            if answer.before is None:
                return found
            request["before"] = answer.before
        raise too_many_execs()

    def _info(self, item: _ExecItem, connection: GuestConnection) -> ExecInfo:
        return ExecInfo(
            id=ExecId(item.id),
            argv=item.argv,
            pid=item.pid,
            started_at=item.started_at,
            background=item.background,
            status=self.status(item.status, connection) if item.status is not None else None,
        )

    async def serves(self, control: GuestConnection, identity: str) -> bool:
        return (await control.open({"op": "agents"}).call(_Agents)).agents.get(identity) is not None

    async def verdict(self, control: GuestConnection, identity: str, pid: int | None) -> tuple[bool, int | None]:
        known = {} if pid is None else {"pid": pid}
        answer = await control.open({"op": "lost", "agent": identity, **known}).call(_Lost)
        return answer.alive, answer.signal

    def connect(self, port: int) -> Json:
        return {"op": "connect", "port": port}

    def accept(self, path: str) -> Json:
        return {"op": "accept", "path": path}

    async def perform(self, connection: GuestConnection, action: Action[T]) -> T:
        return await perform(connection, action)


JSON = _JsonDialect()


def too_many_execs() -> SandboxError:
    return SandboxError("more commands run in the sandbox than can be listed", hint="kill some of them, or the sandbox")


def _kind(error: _ErrorBody) -> type[PaddockError]:
    """Tell a program that can't be executed from the rest, as the native guest does by the step."""
    if error.code == "not_found" and error.message.startswith(("no program ", "the interpreter or loader ")):
        return ProgramNotFoundError
    if error.code == "invalid_argument" and error.errno in _NOT_EXECUTABLE and "execut" in error.message:
        return ProgramNotExecutableError
    return BY_CODE[error.code]


def _error(body: Json) -> PaddockError:
    try:
        parsed = msgspec.convert(body, _ErrorBody)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"an error with {error}") from None
    if parsed.code not in _CODES:
        raise ProtocolError("an error of a kind that no guest may report")
    error = _kind(parsed)(parsed.message[:_MAX_MESSAGE])
    if parsed.errno is not None:
        error.details["errno"] = parsed.errno[:32]
    return error


def _require_sendable(value: object, depth: int = 1) -> None:
    """InvalidArgument for what the guest would refuse to read."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise InvalidArgument("an integer of more than 64 bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidArgument(f"the number {value}")
    elif kind is tuple or kind is list or kind is dict or isinstance(value, Mapping | list | tuple):
        if depth > MAX_DEPTH:
            raise InvalidArgument("values nested too deeply")
        items = cast("Sequence[object]", value.values() if isinstance(value, Mapping) else value)
        for item in items:
            if type(item) is not str:
                _require_sendable(item, depth + 1)
    elif not isinstance(value, str):
        raise InvalidArgument(f"a value of type {type(value).__name__}")
