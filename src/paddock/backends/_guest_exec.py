"""Handles of commands in a guest, over pipes that the host made or over the frames of a channel."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any

from paddock.errors import GuestLost, InvalidArgument, NotFound, PaddockError, SandboxError
from paddock.model import ExecId, ExecSpec, ExitStatus, Limit, PtySize
from paddock.model.streams import ByteReader, ByteWriter
from paddock.wire.guest import Stream

from ._guest_files import FileReader
from ._guest_pipes import PipeReader, PipeWriter, open_pipe

if TYPE_CHECKING:
    from ._guest_channel import Channel
    from ._guest_connection import GuestConnection

_MOST_CELLS = 65535  # ioctl_tty(2): unsigned shorts
_PIPES = (PipeReader, PipeWriter)


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
        self._dialect = connection.dialect
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
                kind = self._dialect.attached if self._outlives else self._dialect.started
                self._pid = (await self._channel.reply(kind)).pid
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
            return self._dialect.status(await self._result(), self._connection)
        except GuestLost as error:
            if not _killed(error):
                raise
            # Whoever kills its agent kills the command: pid 1 has ended all that the agent left.
            seconds = asyncio.get_running_loop().time() - self._began
            return ExitStatus(signal=signal.SIGKILL, duration_seconds=round(seconds, 6))

    async def _result(self) -> Any:
        return await self._channel.result(self._dialect.exited)

    async def signal(self, number: int) -> None:
        await self._connection.open(self._dialect.signal(self._id, number)).call(self._dialect.nothing)

    async def kill(self) -> None:
        try:
            answer = await self._connection.open(self._dialect.kill(self._id)).call(self._dialect.killed)
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
        with contextlib.suppress(NotFound):  # ended so long ago that the guest has forgotten it
            await self._connection.open(self._dialect.resize(self._id, size)).call(self._dialect.nothing)

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

    async def _result(self) -> Any:
        channel = self._connection.open(self._dialect.attach(self._id, silent=True), receives=(Stream.OUT, Stream.ERR))
        try:
            return await channel.result(self._dialect.exited)
        except NotFound:  # ended so long ago that the guest has forgotten it; this channel has not
            return await super()._result()
        finally:
            if not channel.has_ended:
                channel.close()


async def start_foreground(
    connection: GuestConnection, spec: ExecSpec, id: ExecId, user: str | None
) -> GuestExecHandle:
    request = connection.dialect.exec(spec, id, user, background=False)
    if spec.pty is not None or not connection.descriptors:
        receives = (Stream.OUT,) if spec.pty is not None else (Stream.OUT, Stream.ERR)
        sends = spec.stdin or spec.pty is not None
        channel = connection.open(request, receives=receives, sends=sends)
        handle = GuestExecHandle(
            connection,
            channel,
            id=id,
            stdin=ChannelWriter(channel) if sends else None,
            stdout=ChannelReader(channel, Stream.OUT, cut=spec.pty is None),
            stderr=ChannelReader(channel, Stream.ERR, cut=True) if spec.pty is None else None,
            pty=spec.pty is not None,
        )
    else:
        handle = _over_pipes(connection, request, spec, id)
    await handle.started()
    return handle


def _over_pipes(connection: GuestConnection, request: Any, spec: ExecSpec, id: ExecId) -> GuestExecHandle:
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
    dialect = connection.dialect
    request = dialect.exec(spec, id, user, background=True)
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
                await channel.call(dialect.started)
            await handle.started()
        except BaseException:
            handle.abandon()
            raise
        outer.pop_all()
    return handle


async def output(connection: GuestConnection, id: ExecId, stream: int) -> FileReader:
    """What a background command has printed until now."""
    request, carrier = connection.dialect.output(id, stream)
    channel = connection.open(request, receives=(carrier,))
    with channel.attended():
        await channel.reply(connection.dialect.attached)
    return FileReader(channel, None, stream=carrier)


def attach(connection: GuestConnection, id: ExecId, stdin: PipeWriter | None = None) -> GuestExecHandle:
    channel = connection.open(connection.dialect.attach(id), receives=(Stream.OUT, Stream.ERR))
    return AttachedExecHandle(
        connection,
        channel,
        id=id,
        stdin=stdin,
        stdout=ChannelReader(channel, Stream.OUT),
        stderr=ChannelReader(channel, Stream.ERR),
    )
