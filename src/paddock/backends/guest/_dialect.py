"""What is asked of an agent, by `native/schema.py`, and what its answers mean."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from paddock.errors import InvalidArgument, SandboxError
from paddock.model import Action, ExecId, ExecInfo, ExecSpec, ExitStatus, PtySize
from paddock.model import Limit as Ceiling
from paddock.wire.guest import (
    Accept,
    Attach,
    AttachFlags,
    AttachReply,
    Connect,
    EndedFlags,
    Exec,
    ExecFlags,
    ExecReply,
    Execs,
    ExecsReply,
    Exit,
    Hand,
    Kill,
    KillReply,
    Listed,
    ListedFlags,
    Op,
    Resize,
    Signal,
    Stream,
)

from . import _orders as orders
from ._files import perform
from ._place import Place, encode, show
from ._requests import Nothing, Request, ask, of_command, of_door, of_exec, of_guest, of_hand, of_port

if TYPE_CHECKING:
    from paddock.backends._guest_connection import GuestConnection

T = TypeVar("T")
_UMASK = 0o022
# As plain numbers: every command has some, and an enumeration's `|` and `&` are calls.
_STDIN, _TERMINAL, _BACKGROUND = int(ExecFlags.STDIN), int(ExecFlags.TERMINAL), int(ExecFlags.BACKGROUND)
_IDENTITY, _VITAL, _OOM = int(ExecFlags.IDENTITY), int(ExecFlags.VITAL), int(ExecFlags.OOM)
_STRUCK = {
    int(EndedFlags.TIME): Ceiling.TIME,
    int(EndedFlags.MEMORY): Ceiling.MEMORY,
    int(EndedFlags.PROCESSES): Ceiling.PROCESSES,
    int(EndedFlags.DISK): Ceiling.DISK,
    int(EndedFlags.INODES): Ceiling.INODES,
}
_MOST_ANSWERS = 64
"""Of a list of commands: each has 64 KiB."""


class NativeDialect:
    """For connections to the agent of one identity."""

    nothing, started, attached, exited, killed = Nothing, ExecReply, AttachReply, Exit, KillReply

    def __init__(self, place: Place, *, oom_score: int | None = None) -> None:
        """`oom_score` is that of commands, where the kernel shall kill them before their agent."""
        self._place = place
        self._oom_score = oom_score
        self.ping = Request(Op.PING, b"", of_guest)

    def exec(self, spec: ExecSpec, id: ExecId, user: str | None, *, background: bool, vital: bool = False) -> Request:
        """The agent ends with a command that is `vital`."""
        other = None if user is None else self._place.user(user)
        flags = _VITAL if vital else 0
        if other is not None:
            flags |= _IDENTITY
        if self._oom_score is not None:
            flags |= _OOM
        if spec.stdin and spec.pty is None:
            flags |= _STDIN
        if spec.pty is not None:
            flags |= _TERMINAL
        if background:
            flags |= _BACKGROUND
        size = spec.pty
        message = Exec(
            flags=flags,
            uid=0 if other is None else other.uid,
            gid=0 if other is None else other.gid,
            oom_score=self._oom_score or 0,
            rows=0 if size is None else size.rows,
            columns=0 if size is None else size.columns,
            umask=_UMASK,
            timeout=_nanoseconds(spec.timeout_seconds) if background else 0,
            id=encode(id),
            argv=tuple(map(encode, spec.argv)),
            env=self._place.environment(spec.env, other),
            cwd=self._place.cwd(spec.cwd),
        )
        program = spec.argv[0] if spec.argv else ""
        return ask(Op.EXEC, message, of_exec(program, spec.cwd or "", id))

    def attach(self, id: ExecId, *, silent: bool = False) -> Request:
        flags = 0 if silent else AttachFlags.OUT | AttachFlags.ERR
        return ask(Op.ATTACH, Attach(flags=flags, id=encode(id)), of_command(id))

    def output(self, id: ExecId, stream: int) -> tuple[Request, int]:
        flags = (AttachFlags.OUT if stream == Stream.OUT else AttachFlags.ERR) | AttachFlags.NOW
        return ask(Op.ATTACH, Attach(flags=flags, id=encode(id)), of_command(id)), stream

    def signal(self, id: ExecId, number: int) -> Request:
        return ask(Op.SIGNAL, Signal(number=number, id=encode(id)), of_command(id))

    def kill(self, id: ExecId) -> Request:
        return ask(Op.KILL, Kill(id=encode(id)), of_command(id))

    def resize(self, id: ExecId, size: PtySize) -> Request:
        return ask(Op.RESIZE, Resize(rows=size.rows, columns=size.columns, id=encode(id)), of_command(id))

    def status(self, exited: Exit | Listed, connection: GuestConnection) -> ExitStatus:
        """Breaks the connection over what no kernel reports."""
        status = ExitStatus(
            code=None if exited.code == -1 else exited.code,
            signal=exited.signal or None,
            limit=next((limit for flag, limit in _STRUCK.items() if exited.ended & flag), None),
            duration_seconds=round(exited.duration / 1e9, 6),
        )
        sound = (
            (status.code is None) != (status.signal is None)
            and (status.code is None or 0 <= status.code <= 255)
            and (status.signal is None or 1 <= status.signal <= 64)
            and 0 <= status.duration_seconds < 1e9
        )
        if not sound:
            raise connection.breach("an exit status that no kernel reports")
        if status.limit not in (None, Ceiling.TIME) and not connection.tells:
            raise connection.breach("a ceiling of which a guest knows nothing")
        return status

    async def execs(self, connection: GuestConnection) -> list[ExecInfo]:
        found: list[ExecInfo] = []
        before = 0
        for _ in range(_MOST_ANSWERS):
            request = Request(Op.EXECS, Execs(before=before).pack(), of_guest)
            answer = await connection.open(request).call(ExecsReply)
            found += [self._info(item, connection) for item in answer.execs]
            before = answer.before
            if not before:
                return found
        raise SandboxError(
            "more commands run in the sandbox than can be listed", hint="kill some of them, or the sandbox"
        )

    def _info(self, item: Listed, connection: GuestConnection) -> ExecInfo:
        return ExecInfo(
            id=ExecId(show(item.id)),
            argv=tuple(map(show, item.argv)),
            pid=item.pid,
            started_at=item.started / 1e9,
            background=bool(item.flags & ListedFlags.BACKGROUND),
            status=self.status(item, connection) if item.flags & ListedFlags.ENDED else None,
        )

    async def serves(self, control: GuestConnection, identity: str) -> bool:
        return await orders.serves(control, identity)

    async def verdict(self, control: GuestConnection, identity: str, pid: int | None) -> tuple[bool, int | None]:
        return await orders.verdict(control, identity, pid)

    def connect(self, port: int) -> Request:
        if not 0 < port < 65536:
            raise InvalidArgument("port must be an integer from 1 to 65535")
        return ask(Op.CONNECT, Connect(port=port), of_port(port))

    def accept(self, path: str) -> Request:
        return ask(Op.ACCEPT, Accept(path=self._place.locate(path)), of_door(path))

    def hand(self, name: str, text: str) -> Request:
        """Has descriptors passed on to the process that listens at the abstract datagram socket `name`."""
        return ask(Op.HAND, Hand(name=encode(name), text=encode(text)), of_hand(name))

    async def perform(self, connection: GuestConnection, action: Action[T]) -> T:
        return await perform(connection, self._place, action)


def _nanoseconds(seconds: float | None) -> int:
    """0: none."""
    if seconds is None:
        return 0
    if not seconds > 0 or not math.isfinite(seconds):
        raise InvalidArgument("timeout_seconds must be seconds above 0")
    return min(max(1, int(seconds * 1e9)), (1 << 63) - 1)
