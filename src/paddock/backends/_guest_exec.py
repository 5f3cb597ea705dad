"""Handles of commands in a guest, over pipes that the host made or over the frames of a channel."""

from __future__ import annotations

import asyncio
import contextlib
import os

import msgspec

from paddock.errors import InvalidArgument, NotFound, SandboxError
from paddock.guest._frames import STDERR, STDOUT, Json
from paddock.model import ExecId, ExecSpec, ExitStatus, PtySize
from paddock.model.streams import ByteReader, ByteWriter

from ._guest_channel import Channel
from ._guest_connection import GuestConnection
from ._guest_files import FileReader
from ._guest_pipes import PipeReader, PipeWriter

_PATIENCE_SECONDS = 10.0
_START_SECONDS = 30.0
_MOST_CELLS = 65535  # ioctl_tty(2): unsigned shorts


class Started(msgspec.Struct, frozen=True):
    pid: int


class Exited(msgspec.Struct, frozen=True):
    code: int | None
    signal: int | None
    duration_seconds: float

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
        return ExitStatus(code=code, signal=number, duration_seconds=self.duration_seconds)


class _Survivors(msgspec.Struct, frozen=True):
    survivors: int


class ChannelReader:
    """A stream that comes in frames."""

    def __init__(self, channel: Channel, stream: int) -> None:
        self._channel = channel
        self._stream = stream

    async def read(self, size: int = 65536) -> bytes:
        return await self._channel.read(self._stream, size)

    async def aclose(self) -> None:
        """The channel is closed by whoever holds the whole."""


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
            async with asyncio.timeout(_START_SECONDS):
                self._pid = (await self._channel.reply(Started)).pid
        except TimeoutError:
            self._close_pipes()
            raise self._connection.breach("it did not start a command in time") from None
        except BaseException:
            self._close_pipes()
            raise

    def abandon(self) -> None:
        """Nobody will ever hold it."""
        self._close_pipes()
        self._channel.close()

    async def wait(self) -> ExitStatus:
        return (await self._channel.result(Exited)).status(self._connection)

    async def signal(self, number: int) -> None:
        await self._connection.open({"op": "signal", "id": self._id, "signal": number}).call(Json)

    async def kill(self) -> None:
        try:
            answer = await self._connection.open({"op": "kill_exec", "id": self._id}).call(_Survivors)
        except NotFound:  # ended so long ago that the guest has forgotten it
            return
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
        self._channel.close()
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._channel.ended()
        except TimeoutError:
            raise self._connection.breach("it did not end a command in time") from None

    def _finish_pipes(self) -> None:
        for reader in (self._stdout, self._stderr):
            if isinstance(reader, PipeReader):
                reader.finish()
        if isinstance(self._stdin, PipeWriter):
            self._stdin.close()

    def _close_pipes(self) -> None:
        for pipe in (self._stdin, self._stdout, self._stderr):
            if isinstance(pipe, PipeReader | PipeWriter):
                pipe.close()


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
            stdout=ChannelReader(channel, STDOUT),
            stderr=ChannelReader(channel, STDERR) if spec.pty is None else None,
            pty=spec.pty is not None,
        )
    else:
        handle = _over_pipes(connection, request, spec, id)
    await handle.started()
    return handle


def _over_pipes(connection: GuestConnection, request: dict[str, object], spec: ExecSpec, id: ExecId) -> GuestExecHandle:
    with contextlib.ExitStack() as inner, contextlib.ExitStack() as outer:
        far: list[int] = []
        stdin: PipeWriter | None = None
        if spec.stdin:
            reader, writer = os.pipe2(os.O_CLOEXEC)
            inner.callback(os.close, reader)
            far.append(reader)
            stdin = PipeWriter(writer)
            outer.callback(stdin.close)
        near: list[PipeReader] = []
        for _ in range(2):
            reader, writer = os.pipe2(os.O_CLOEXEC)
            inner.callback(os.close, writer)
            far.append(writer)
            near.append(PipeReader(reader))
            outer.callback(near[-1].close)
        channel = connection.open(request, fds=far)
        outer.pop_all()
    return GuestExecHandle(connection, channel, id=id, stdin=stdin, stdout=near[0], stderr=near[1])


async def start_background(
    connection: GuestConnection, spec: ExecSpec, id: ExecId, user: str | None
) -> GuestExecHandle:
    """Its output is kept inside; the handle is attached to it in the same breath."""
    request = exec_request(spec, id, user) | {"background": True}
    with contextlib.ExitStack() as inner, contextlib.ExitStack() as outer:
        far: list[int] = []
        stdin: PipeWriter | None = None
        if spec.stdin:
            if not connection.descriptors:
                raise InvalidArgument("a background command has no stdin here")
            reader, writer = os.pipe2(os.O_CLOEXEC)
            inner.callback(os.close, reader)
            far.append(reader)
            stdin = PipeWriter(writer)
            outer.callback(stdin.close)
        channel = connection.open(request, fds=far)
        handle = attach(connection, id, stdin)
        try:
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
    await channel.reply(Started)
    return FileReader(channel, None)


def attach(connection: GuestConnection, id: ExecId, stdin: PipeWriter | None = None) -> GuestExecHandle:
    channel = connection.open({"op": "attach", "id": id}, receives=(STDOUT, STDERR))
    return GuestExecHandle(
        connection,
        channel,
        id=id,
        stdin=stdin,
        stdout=ChannelReader(channel, STDOUT),
        stderr=ChannelReader(channel, STDERR),
    )
