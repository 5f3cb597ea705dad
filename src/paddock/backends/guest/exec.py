"""Handles of commands in a guest, over pipes that the host made or over the frames of a channel."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import stat
from typing import TYPE_CHECKING

from paddock.backends.pump import Journal
from paddock.errors import GuestLostError, InvalidArgumentError, NotFoundError, PaddockError, SandboxError, logged
from paddock.model import ExecId, ExecInfo, ExecSpec, ExitStatus, Limit, PtySize, User
from paddock.wire import close_all
from paddock.wire import guest as wire
from paddock.wire.guest import EndedFlags, ExecFlags, Op, Stream

from ._frame_streams import FrameReader, FrameWriter, is_killed
from ._place import GuestDefaults, encode, show
from ._requests import EmptyBody, Request, ask, flags, of_command, of_exec, of_guest
from ._streams import FileReader
from .pipes import PipeReader, PipeWriter, open_pipe

if TYPE_CHECKING:
    from paddock.backends.jail import DescriptorStore

    from .connection import Channel, GuestConnection

_UMASK = 0o022
# As plain numbers: every command has some, and an enumeration's `|` and `&` are calls.
_STDIN, _TERMINAL, _BACKGROUND = int(ExecFlags.STDIN), int(ExecFlags.TERMINAL), int(ExecFlags.BACKGROUND)
_IDENTITY, _VITAL, _OOM = int(ExecFlags.IDENTITY), int(ExecFlags.VITAL), int(ExecFlags.OOM)
_STRUCK = {
    int(EndedFlags.TIME): Limit.TIME,
    int(EndedFlags.MEMORY): Limit.MEMORY,
    int(EndedFlags.PROCESSES): Limit.PROCESSES,
    int(EndedFlags.DISK): Limit.DISK,
    int(EndedFlags.INODES): Limit.INODES,
}
_LATER_SECONDS = 2.0
"""A command's own daemon ends it first when its time is over, and says so."""
_OUTPUTS = 4
"""The number of kept descriptors for output pipes. Those of stdin follow."""
_MOST_ANSWERS = 64
"""Of a list of commands: each has 64 KiB."""


def exec_request(
    place: GuestDefaults, spec: ExecSpec, id: ExecId, other: User | None, *, background: bool, vital: bool = False
) -> Request:
    """Ask to start a command, as the agent's user or `other`. The agent ends with a command that is `vital`."""
    size = spec.pty
    wanted = {
        _VITAL: vital,
        _IDENTITY: other is not None,
        _OOM: place.oom_score is not None,
        _STDIN: spec.stdin and size is None,
        _TERMINAL: size is not None,
        _BACKGROUND: background,
    }
    message = wire.Exec(
        flags=flags(wanted),
        uid=0 if other is None else other.uid,
        gid=0 if other is None else other.gid,
        oom_score=place.oom_score or 0,
        rows=0 if size is None else size.rows,
        columns=0 if size is None else size.columns,
        umask=_UMASK,
        timeout=_nanoseconds(spec.timeout_seconds) if background else 0,
        id=encode(id),
        argv=tuple(map(encode, spec.argv)),
        env=place.environment(spec.env, other),
        cwd=place.cwd(spec.cwd),
    )
    program = spec.argv[0] if spec.argv else ""
    return ask(Op.EXEC, message, of_exec, program, spec.cwd or "", id)


def _nanoseconds(seconds: float | None) -> int:
    """0: none."""
    if seconds is None:
        return 0
    if not seconds > 0 or not math.isfinite(seconds):
        raise InvalidArgumentError("timeout_seconds must be seconds above 0")
    return min(max(1, int(seconds * 1e9)), (1 << 63) - 1)


def _attach_request(id: ExecId, flags: int) -> Request:
    return ask(Op.ATTACH, wire.Attach(flags=flags, id=encode(id)), of_command, id)


def signal_request(id: ExecId, number: int) -> Request:
    return ask(Op.SIGNAL, wire.Signal(number=number, id=encode(id)), of_command, id)


def kill_request(id: ExecId) -> Request:
    return ask(Op.KILL, wire.Kill(id=encode(id)), of_command, id)


async def signal_exec(connection: GuestConnection, id: ExecId, number: int) -> None:
    await connection.open(signal_request(id, number)).call(EmptyBody)


async def execs(connection: GuestConnection) -> list[ExecInfo]:
    found: list[ExecInfo] = []
    before = 0
    for _ in range(_MOST_ANSWERS):
        answer = await connection.open(ask(Op.EXECS, wire.Execs(before=before), of_guest)).call(wire.ExecsReply)
        found += [_info(item, connection) for item in answer.execs]
        before = answer.before
        if not before:
            return found
    raise SandboxError("more commands run in the sandbox than can be listed", hint="kill some of them, or the sandbox")


def _info(item: wire.Listed, connection: GuestConnection) -> ExecInfo:
    return ExecInfo(
        id=ExecId(show(item.id)),
        argv=tuple(map(show, item.argv)),
        pid=item.pid,
        started_at=item.started / 1e9,
        background=bool(item.flags & wire.ListedFlags.BACKGROUND),
        status=_status(item, connection) if item.flags & wire.ListedFlags.ENDED else None,
    )


def _status(exited: wire.Exit | wire.Listed, connection: GuestConnection) -> ExitStatus:
    """Break the connection over what no kernel reports."""
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
    if status.limit not in (None, Limit.TIME) and not connection.tells:
        raise connection.breach("a limit of which a guest knows nothing")
    return status


class GuestExecHandle:
    """Hold a command inside. Its streams end at what was printed when its main process died."""

    _outlives = False
    """Whether it continues after the daemon releases it."""

    def __init__(
        self,
        connection: GuestConnection,
        channel: Channel,
        id: ExecId,
        stdin: PipeWriter | FrameWriter | None,
        stdout: PipeReader | FrameReader,
        stderr: PipeReader | FrameReader | None,
        store: DescriptorStore | None = None,
        *,
        was_kept: bool = False,
        pid: int = 0,
    ) -> None:
        """`was_kept`: by an earlier daemon. `pid`: its process, if that is known without `started`."""
        self._connection, self._channel, self._store = connection, channel, store
        self._kept = was_kept
        self.id, self.pid = id, pid
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        if isinstance(stdin, PipeWriter):
            stdin.after_close = self._fed
        self._began = asyncio.get_running_loop().time()
        channel.exit.then(self._finish_pipes)

    async def started(self) -> None:
        """Wait until the guest reports the start; on failure close everything."""
        try:
            with self._channel.attended():
                kind = wire.AttachReply if self._outlives else wire.ExecReply
                self.pid = (await self._channel.reply(kind)).pid
        except BaseException as error:
            if not is_killed(error):
                self._close_pipes()
                if isinstance(error, SandboxError) and error.details.get("errno") == "EAGAIN":  # of clone(2)
                    error.details["limit"] = Limit.PROCESSES.value
                    error.hint = "end what runs in the sandbox, or create one with more Limits(processes=...)"
                raise
            # The command may have killed its agent at that moment: `wait` reports it.

    def abandon(self) -> None:
        """Release a command whose caller never gets it."""
        self._close_pipes()
        self._channel.close()

    async def wait(self) -> ExitStatus:
        try:
            return _status(await self._result(), self._connection)
        except GuestLostError as error:
            if not is_killed(error):
                raise
            # The agent's death kills the command: pid 1 ends all that an agent leaves.
            seconds = asyncio.get_running_loop().time() - self._began
            return ExitStatus(signal=signal.SIGKILL, duration_seconds=round(seconds, 6))

    async def _result(self) -> wire.Exit:
        return await self._channel.result(wire.Exit)

    async def signal(self, number: int) -> None:
        await signal_exec(self._connection, self.id, number)

    async def kill(self) -> None:
        try:
            answer = await self._connection.open(kill_request(self.id)).call(wire.KillReply)
        except NotFoundError:  # ended so long ago that the guest has forgotten it
            return
        except GuestLostError as error:
            if self._connection.closed and is_killed(await self._connection.why()):
                return
            raise self._unended(error) from None
        if answer.survivors:
            raise SandboxError(
                f"{answer.survivors} processes of the command could not be killed", hint="kill the sandbox"
            )

    async def resize(self, size: PtySize) -> None:
        if self.stderr is not None:
            raise InvalidArgumentError("the command has no terminal")
        message = wire.Resize(rows=size.rows, columns=size.columns, id=encode(self.id))
        with contextlib.suppress(NotFoundError):  # ended so long ago that the guest has forgotten it
            await self._connection.open(ask(Op.RESIZE, message, of_command, self.id)).call(EmptyBody)

    async def keep(self, timeout_seconds: float | None) -> None:
        """Have the supervisor hold its pipes, and the files of what was read of them. The guest holds frames until they
        are in such a file."""
        store, readers = self._store, [one for one in (self.stdout, self.stderr) if one is not None]
        if store is None or self._kept or any(one.closed for one in readers):
            return
        journals = [await asyncio.to_thread(store.journal) for _ in readers]
        input_fds = () if self.stdin is None else await self.stdin.kept()
        if any(one.closed for one in readers):
            return  # it ended meanwhile
        for reader, journal in zip(readers, journals, strict=True):
            reader.journal = journal
        self._kept = True
        await store.put(self.id, (*(fd for reader in readers for fd in reader.kept()), *input_fds))
        seconds = None if timeout_seconds is None else timeout_seconds + _LATER_SECONDS
        message = wire.Keep(timeout=_nanoseconds(seconds), id=encode(self.id))
        await self._connection.open(ask(Op.KEEP, message, of_command, self.id)).call(EmptyBody)

    async def feed(self, data: bytes) -> None:
        assert self.stdin is not None
        await self.stdin.feed(data)

    async def _fed(self) -> None:
        """Note that its stdin is closed: an open copy would keep the command from seeing the end."""
        if self._kept and self._store is not None:
            await self._store.put(self.id, (), after=_OUTPUTS)

    async def leave(self) -> None:
        if not self._kept:
            await self.aclose()
        else:
            self._close_pipes()

    async def aclose(self) -> None:
        self._close_pipes()
        if self._kept and self._store is not None:
            self._kept = False
            with logged("release the output", self.id):
                await self._store.put(self.id, ())
            if not self._channel.exit.done:
                if self._connection.pause_clock.now:  # it hears of that when it goes on
                    self._connection.open(kill_request(self.id))
                else:
                    await self.kill()
        if self._channel.end.done:
            return
        self._channel.close()
        if self._connection.pause_clock.now:
            return  # it ends when the sandbox resumes: a release doesn't wake it
        try:
            with self._channel.attended():
                await self._channel.finished()
        except GuestLostError as error:
            raise (error if self._outlives else self._unended(error)) from None
        except PaddockError:
            pass  # it has ended, and that is all that was wanted

    def _unended(self, error: PaddockError) -> PaddockError:
        """Cut the connection to a guest that answers, and doesn't end what it should. Return the error."""
        if not error.details.get("answers"):
            return error
        seconds = self._connection.answer_seconds
        return self._connection.breach(f"command {self.id} was not ended in {seconds:g} s", unended=self.id)

    def _finish_pipes(self) -> None:
        for reader in (self.stdout, self.stderr):
            if isinstance(reader, PipeReader):
                reader.finish()
        if isinstance(self.stdin, PipeWriter):
            self.stdin.close()

    def _close_pipes(self) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()


class AttachedExecHandle(GuestExecHandle):
    """Hold a background command. The guest keeps its output for all readers: a separate request waits for its end."""

    _outlives = True

    async def _result(self) -> wire.Exit:
        channel = self._connection.open(_attach_request(self.id, 0), receives=(Stream.OUT, Stream.ERR))
        try:
            return await channel.result(wire.Exit)
        except NotFoundError:  # ended so long ago that the guest has forgotten it; this channel has not
            return await super()._result()
        finally:
            if not channel.end.done:
                channel.close()


async def start_foreground(
    connection: GuestConnection, spec: ExecSpec, id: ExecId, user: User | None, store: DescriptorStore | None = None
) -> GuestExecHandle:
    request = exec_request(connection.place, spec, id, user, background=False)
    if spec.pty is not None or not connection.descriptors:
        receives = (Stream.OUT,) if spec.pty is not None else (Stream.OUT, Stream.ERR)
        sends = spec.stdin or spec.pty is not None
        channel = connection.open(request, receives=receives, sends=sends)
        if (stdin := channel.input) is not None:
            stdin.store = store
        out, err = _outputs(channel, is_cut=spec.pty is None)
    else:
        channel, stdin, (out, err) = _open_over_pipes(connection, request, 2, stdin=spec.stdin)
    handle = GuestExecHandle(connection, channel, id, stdin, out, err, store)
    await handle.started()
    return handle


def _outputs(channel: Channel, *, is_cut: bool) -> tuple[FrameReader, FrameReader | None]:
    """Return a command's stdout and stderr in frames."""
    for reader in channel.outputs.values():
        reader.of_command, reader.cut = True, is_cut
    return channel.outputs[Stream.OUT], channel.outputs.get(Stream.ERR)


def _open_over_pipes(
    connection: GuestConnection, request: Request, outputs: int, *, stdin: bool
) -> tuple[Channel, PipeWriter | None, list[PipeReader]]:
    """Send a request with the far ends of a command's pipes. Return the near ends, of stdin and of the outputs."""
    far: list[int] = []
    near: list[PipeReader] = []
    writer: PipeWriter | None = None
    try:
        if stdin:
            theirs, ours = open_pipe()
            far.append(theirs)
            writer = PipeWriter(ours)
        for _ in range(outputs):
            ours, theirs = open_pipe()
            far.append(theirs)
            near.append(PipeReader(ours))
    except OSError:
        close_all(far)
        raise
    return connection.open(request, fds=far), writer, near


async def take_up(
    connection: GuestConnection, id: ExecId, store: DescriptorStore, held: tuple[int, ...]
) -> GuestExecHandle:
    """Continue a command that another daemon kept. Raises NotFoundError, and ends it, if it or its output is gone."""
    has_pipes = stat.S_ISFIFO(os.fstat(held[0]).st_mode)
    files = held[1:_OUTPUTS:2] if has_pipes else held
    if not all(map(Journal.is_whole, files)):
        await connection.open(kill_request(id)).call(wire.KillReply)
        raise NotFoundError(f"what {id} printed was not kept: there was no room for it on the disk")
    journals = [Journal(os.dup(file)) for file in files]
    out, err = (0, 0) if has_pipes else (journals[0].unread, journals[1].unread if journals[1:] else 0)
    flags = 0 if has_pipes else wire.AttachFlags.OUT | wire.AttachFlags.ERR
    request = ask(Op.ATTACH, wire.Attach(flags=flags, out=out, err=err, id=encode(id)), of_command, id)
    channel = connection.open(request, receives=(Stream.OUT, Stream.ERR), sends=True)
    try:
        with channel.attended():
            reply = await channel.reply(wire.AttachReply, lets_go=False)
        if reply.out > out or (reply.err > err and not reply.flags & wire.AttachedFlags.TERMINAL):
            raise channel.breach(f"what {id} printed was not held")
    except BaseException:
        for journal in journals:
            journal.close()
        raise
    if has_pipes:
        output_fds = [os.dup(fd) for fd in held[_OUTPUTS:]]
        stdin = PipeWriter(*output_fds) if output_fds else None
        stdout, stderr = (PipeReader(os.dup(fd)) for fd in held[:_OUTPUTS:2])
        stdout.journal, stderr.journal = journals
    else:
        is_terminal = bool(reply.flags & wire.AttachedFlags.TERMINAL)
        stdout, stderr = _outputs(channel, is_cut=not is_terminal)
        if is_terminal:
            stderr = None
        for reader in filter(None, (stdout, stderr)):
            reader.journal = journals.pop(0)
        stdin = channel.input if reply.flags & wire.AttachedFlags.STDIN else None
        if stdin is not None:
            stdin.store, stdin.skip, stdin.journal = store, reply.input, journals[0] if journals else None
        else:
            for written in journals:
                written.close()
    return GuestExecHandle(connection, channel, id, stdin, stdout, stderr, store, was_kept=True, pid=reply.pid)


async def start_background(
    connection: GuestConnection, spec: ExecSpec, id: ExecId, user: User | None
) -> GuestExecHandle:
    """Start a background command and attach to it at once. The guest keeps its output."""
    request = exec_request(connection.place, spec, id, user, background=True)
    if spec.stdin and not connection.descriptors:
        raise InvalidArgumentError("a background command has no stdin here")
    channel, stdin, _ = _open_over_pipes(connection, request, 0, stdin=spec.stdin)
    handle = attach(connection, id, stdin)
    try:
        with contextlib.suppress(GuestLostError):  # then the handle knows as well
            await channel.call(wire.ExecReply)
        await handle.started()
    except BaseException:
        handle.abandon()
        raise
    return handle


async def output(connection: GuestConnection, id: ExecId, stream: int) -> FileReader:
    """Return what a background command has printed until now."""
    flags = wire.AttachFlags.OUT if stream == Stream.OUT else wire.AttachFlags.ERR
    channel = connection.open(_attach_request(id, flags | wire.AttachFlags.NOW), receives=(stream,))
    with channel.attended():
        await channel.reply(wire.AttachReply)
    return FileReader(channel, channel.outputs[stream])


def attach(connection: GuestConnection, id: ExecId, stdin: PipeWriter | None = None) -> GuestExecHandle:
    request = _attach_request(id, wire.AttachFlags.OUT | wire.AttachFlags.ERR)
    channel = connection.open(request, receives=(Stream.OUT, Stream.ERR))
    stdout, stderr = _outputs(channel, is_cut=False)
    return AttachedExecHandle(connection, channel, id, stdin, stdout, stderr)
