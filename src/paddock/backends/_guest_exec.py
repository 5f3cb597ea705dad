"""Handles of commands in a guest, over pipes that the host made or over the frames of a channel."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Literal

import msgspec

from paddock.errors import GuestLost, InvalidArgument, NotFound, PaddockError, SandboxError
from paddock.guest._frames import STDERR, STDOUT, Json
from paddock.model import ExecId, ExecSpec, ExitStatus, Limit, PtySize
from paddock.model.streams import ByteReader, ByteWriter

from ._guest_channel import Channel
from ._guest_connection import GuestConnection
from ._guest_files import FileReader
from ._guest_pipes import PipeReader, PipeWriter, open_pipe

_MOST_CELLS = 65535  # ioctl_tty(2): unsigned shorts
_PIPES = (PipeReader, PipeWriter)


class Started(msgspec.Struct, frozen=True):
    pid: int


class Exited(msgspec.Struct, frozen=True):
    code: int | None
    signal: int | None
    duration_seconds: float
    limit: Literal["time", "memory", "processes", "disk", "inodes"] | None = None
    """`time` is the one ceiling that a guest keeps by itself. Of the others the kernel and the host know, but behind a
    wall with a kernel of its own."""

    def status(self, connection: GuestConnection) -> ExitStatus:
        code, number = self.code, self.signal
        sound = (
            (code is None) != (number is None)
            and (code is None or 0 <= code <= 255)
            and (number is None or 1 <= number <= 64)
            and 0 <= self.duration_seconds < 1e9
        )
        if not sound:
            raise connection.breach("an exit status that no kernel reports")
        limit = None if self.limit is None else Limit(self.limit)
        if limit not in (None, Limit.TIME) and not connection.tells:
            raise connection.breach("a ceiling of which a guest knows nothing")
        return ExitStatus(code=code, signal=number, limit=limit, duration_seconds=self.duration_seconds)


class _Survivors(msgspec.Struct, frozen=True):
    survivors: int


def _killed(error: BaseException) -> bool:
    """The agent is dead, and so is all that it had started."""
    return isinstance(error, GuestLost) and error.details.get("killed") is True


class ChannelReader:
    """A stream that comes in frames. `cut`: whoever writes it hears of it when nobody reads it any more."""

    def __init__(self, channel: Channel, stream: int, *, cut: bool = False) -> None:
        self._channel = channel
        self._stream = stream
        self._cut = cut

    async def read(self, size: int = 65536) -> bytes:
        try:
            return await self._channel.read(self._stream, size)
        except GuestLost as error:
            if not _killed(error):
                raise
            return b""  # as of a pipe whose writer was killed: the status says so

    async def aclose(self) -> None:
        """The channel is closed by whoever holds the whole."""
        if self._cut:
            self._channel.leave(self._stream)


class ChannelWriter:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def write(self, data: bytes) -> None:
        await self._channel.write(data)

    async def aclose(self) -> None:
        self._channel.write_eof()

    async def abort(self) -> None:
        """What was sent has been read, perhaps: there is nothing to take back."""
        self._channel.write_eof()


class GuestExecHandle:
    """A command inside. Its streams end at what was printed when its main process died."""

    _outlives = False
    """It runs on when it is let go of."""

    def __init__(
        self,
        connection: GuestConnection,
        channel: Channel,
        *,
        id: ExecId,
        stdin: ByteWriter | None,
        stdout: ByteReader | None,
        stderr: ByteReader | None,
        pty: bool = False,
    ) -> None:
        self._connection = connection
        self._channel = channel
        self._id = id
        self._pid = 0
        self._stdin, self._stdout, self._stderr = stdin, stdout, stderr
        self._pty = pty
        self._began = asyncio.get_running_loop().time()
        channel.when_result(self._finish_pipes)

    @property
    def id(self) -> ExecId:
        return self._id

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def stdin(self) -> ByteWriter | None:
        return self._stdin

    @property
    def stdout(self) -> ByteReader | None:
        return self._stdout

    @property
    def stderr(self) -> ByteReader | None:
        return self._stderr

    async def started(self) -> None:
        """Waits for the guest's word that it runs; on failure everything is closed."""
        try:
            with self._channel.attended():
                self._pid = (await self._channel.reply(Started)).pid
        except BaseException as error:
            if not _killed(error):
                self._close_pipes()
                if isinstance(error, SandboxError) and error.details.get("errno") == "EAGAIN":  # of clone(2)
                    error.details["limit"] = Limit.PROCESSES.value
                    error.hint = "end what runs in the sandbox, or create one with more Limits(processes=...)"
                raise
            # Its agent was killed at that very moment, by the command itself perhaps: `wait` tells.

    def abandon(self) -> None:
        """Nobody will ever hold it."""
        self._close_pipes()
        self._channel.close()

    async def wait(self) -> ExitStatus:
        try:
            return (await self._result()).status(self._connection)
        except GuestLost as error:
            if not _killed(error):
                raise
            # Whoever kills its agent kills the command: pid 1 has ended all that the agent left.
            seconds = asyncio.get_running_loop().time() - self._began
            return ExitStatus(signal=signal.SIGKILL, duration_seconds=round(seconds, 6))

    async def _result(self) -> Exited:
        return await self._channel.result(Exited)

    async def signal(self, number: int) -> None:
        await self._connection.open({"op": "signal", "id": self._id, "signal": number}).call(Json)

    async def kill(self) -> None:
        try:
            answer = await self._connection.open({"op": "kill_exec", "id": self._id}).call(_Survivors)
        except NotFound:  # ended so long ago that the guest has forgotten it
            return
        except GuestLost as error:
            if self._connection.closed and _killed(await self._connection.why()):
                return
            raise self._unended(error) from None
        if answer.survivors:
            raise SandboxError(
                f"{answer.survivors} processes of the command could not be killed", hint="kill the sandbox"
            )

    async def resize(self, size: PtySize) -> None:
        if not self._pty:
            raise InvalidArgument("the command has no terminal")
        order: dict[str, object] = {"op": "resize", "id": self._id, "rows": size.rows, "columns": size.columns}
        with contextlib.suppress(NotFound):  # ended so long ago that the guest has forgotten it
            await self._connection.open(order).call(Json)

    async def aclose(self) -> None:
        self._close_pipes()
        if self._channel.has_ended:
            return
        self._channel.close()
        if self._connection.stillness.now:
            return  # it ends when the sandbox goes on: to let go of it is no use that wakes it
        try:
            with self._channel.attended():
                await self._channel.finished()
        except GuestLost as error:
            raise (error if self._outlives else self._unended(error)) from None
        except PaddockError:
            pass  # it has ended, and that is all that was wanted

    def _unended(self, error: PaddockError) -> PaddockError:
        """A guest that answers, and does not end what it should, is not believed any more: the connection is cut."""
        if not error.details.get("answers"):
            return error
        seconds = self._connection.answer_seconds
        return self._connection.breach(f"command {self._id} was not ended in {seconds:g} s", unended=self._id)

    def _finish_pipes(self) -> None:
        for reader in (self._stdout, self._stderr):
            if isinstance(reader, PipeReader):
                reader.finish()
        if isinstance(self._stdin, PipeWriter):
            self._stdin.close()

    def _close_pipes(self) -> None:
        for pipe in (self._stdin, self._stdout, self._stderr):
            if isinstance(pipe, _PIPES):
                pipe.close()


class AttachedExecHandle(GuestExecHandle):
    """A background one. Its output is kept inside whoever reads: its end is asked for beside, and waits for nobody."""

    _outlives = True

    async def _result(self) -> Exited:
        order: dict[str, object] = {"op": "attach", "id": self._id, "silent": True}
        channel = self._connection.open(order, receives=(STDOUT, STDERR))
        try:
            return await channel.result(Exited)
        except NotFound:  # ended so long ago that the guest has forgotten it; this channel has not
            return await super()._result()
        finally:
            if not channel.has_ended:
                channel.close()


def exec_request(spec: ExecSpec, id: ExecId, user: str | None) -> dict[str, object]:
    request: dict[str, object] = {"op": "exec", "id": id, "argv": spec.argv}
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
    return request


async def start_foreground(
    connection: GuestConnection, spec: ExecSpec, id: ExecId, user: str | None
) -> GuestExecHandle:
    request = exec_request(spec, id, user)
    if spec.pty is not None or not connection.descriptors:
        receives = (STDOUT,) if spec.pty is not None else (STDOUT, STDERR)
        sends = spec.stdin or spec.pty is not None
        channel = connection.open(request, receives=receives, sends=sends)
        handle = GuestExecHandle(
            connection,
            channel,
            id=id,
            stdin=ChannelWriter(channel) if sends else None,
            stdout=ChannelReader(channel, STDOUT, cut=spec.pty is None),
            stderr=ChannelReader(channel, STDERR, cut=True) if spec.pty is None else None,
            pty=spec.pty is not None,
        )
    else:
        handle = _over_pipes(connection, request, spec, id)
    await handle.started()
    return handle


def _over_pipes(connection: GuestConnection, request: dict[str, object], spec: ExecSpec, id: ExecId) -> GuestExecHandle:
    far: list[int] = []
    near: list[PipeReader] = []
    stdin: PipeWriter | None = None
    try:
        if spec.stdin:
            reader, writer = open_pipe()
            far.append(reader)
            stdin = PipeWriter(writer)
        for _ in range(2):
            reader, writer = open_pipe()
            far.append(writer)
            near.append(PipeReader(reader))
        channel = connection.open(request, fds=far)
    except BaseException:
        for pipe in (stdin, *near):
            if pipe is not None:
                pipe.close()
        raise
    finally:
        for fd in far:
            os.close(fd)
    return GuestExecHandle(connection, channel, id=id, stdin=stdin, stdout=near[0], stderr=near[1])


async def start_background(
    connection: GuestConnection, spec: ExecSpec, id: ExecId, user: str | None
) -> GuestExecHandle:
    """Its output is kept inside; the handle is attached to it in the same breath."""
    request = exec_request(spec, id, user) | {"background": True}
    if spec.timeout_seconds is not None:
        request["timeout_seconds"] = spec.timeout_seconds
    with contextlib.ExitStack() as inner, contextlib.ExitStack() as outer:
        far: list[int] = []
        stdin: PipeWriter | None = None
        if spec.stdin:
            if not connection.descriptors:
                raise InvalidArgument("a background command has no stdin here")
            reader, writer = open_pipe()
            inner.callback(os.close, reader)
            far.append(reader)
            stdin = PipeWriter(writer)
            outer.callback(stdin.close)
        channel = connection.open(request, fds=far)
        handle = attach(connection, id, stdin)
        try:
            with contextlib.suppress(GuestLost):  # then the handle knows as well
                await channel.call(Started)
            await handle.started()
        except BaseException:
            handle.abandon()
            raise
        outer.pop_all()
    return handle


async def output(connection: GuestConnection, id: ExecId, stream: int) -> FileReader:
    """What a background command has printed until now."""
    channel = connection.open({"op": "output", "id": id, "stream": stream}, receives=(STDOUT,))
    with channel.attended():
        await channel.reply(Started)
    return FileReader(channel, None)


def attach(connection: GuestConnection, id: ExecId, stdin: PipeWriter | None = None) -> GuestExecHandle:
    channel = connection.open({"op": "attach", "id": id}, receives=(STDOUT, STDERR))
    return AttachedExecHandle(
        connection,
        channel,
        id=id,
        stdin=stdin,
        stdout=ChannelReader(channel, STDOUT),
        stderr=ChannelReader(channel, STDERR),
    )
