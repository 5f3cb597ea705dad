"""The transport to the daemon, and the handles in its answers.

The bytes of a handle flow through descriptors, with the daemon at the other end. All other methods of a handle are
calls.
"""

from __future__ import annotations

import os
import sys

from paddock.client._async_connections import AsyncMutex, AsyncPipe
from paddock.client._session import handle_methods, lost, new_id, request_of, session, undo_of
from paddock.errors import DaemonLostError, DaemonUnavailableError, InvalidStateError, PaddockError
from paddock.model import AttachExec, CreateSandbox, ExecId, KillSandbox, RunExec, StartExec, codec
from paddock.wire import Frame, close_all

from .calls import AsyncCalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from paddock.model import Action, ExitStatus, FileChange, FileInfo, PtySize


class AsyncDaemonTransport:
    """Carries actions to the daemon. An interrupted or cancelled call ends after its undo."""

    def __init__(self, calls: AsyncCalls) -> None:
        self._calls = calls

    async def perform(self, action: Action[Any]) -> Any:
        id = new_id(action)
        body, descriptors = request_of(action, id)
        try:
            frame = await self._calls.ask(
                body,
                descriptors,
                repeatable=action.REPEATABLE or isinstance(action, CreateSandbox | RunExec),
                cancels=not isinstance(action, KillSandbox),
                undo=lambda late: undo_of(action, late),
                lost=lambda problem: lost(action, id, problem),
            )
        except (PaddockError, OSError) as error:
            raise error.with_traceback(None)  # noqa: B904 - it is the same error, without the frames of the protocol
        finally:
            close_all(descriptors)
        match action.RESULT:
            case "ExecHandle":
                return _Exec(self._calls, frame, action)
            case "ByteReader":
                return _Reader(_opened(self._calls, frame, "close"), "end")
            case "ByteWriter":
                return _Writer(_opened(self._calls, frame, "abort"))
            case "ByteStream":
                return _PortConnection(_opened(self._calls, frame, "close"), "end")
            case "ChangeStream":
                return _Changes(self._calls, _decoded(frame).handle, "close")
            case "Promotion" | "PushedBranch" | "PullRequest":
                return await _carry_out(self._calls, frame, action)
            case _:
                return codec.decode_result(frame.body, type(action))

    def blocking(self) -> object:
        """Return the transport of the same session for threads."""
        from paddock.client._sync.calls import Calls
        from paddock.client._sync.daemon import DaemonTransport

        return DaemonTransport(Calls(self._calls.session))

    async def control(self, what: str) -> bytes:
        """`status`, `stop` or `restart` of the daemon itself."""
        body = codec.encode(codec.Request(control=what))
        return (await self._calls.ask(body, (), again=what == "status")).body

    async def aclose(self) -> None:
        """Do nothing: the session belongs to this process, not to this transport."""


def default_async_transport(state_dir: str | os.PathLike[str] | None = None) -> AsyncDaemonTransport:
    """Return the transport to the daemon of a state directory, by the name `paddock.local_async`.

    The first call starts the daemon.

    Args:
        state_dir: The directory. None: the default one, or PADDOCK_STATE_DIR.

    Returns:
        A transport, for the argument of that name.

    Example:
        ```python
        here = local_async()
        async with await AsyncSandbox.create(transport=here) as other:
            print(other.state)  # running
        ```
    """
    return AsyncDaemonTransport(AsyncCalls(session(state_dir)))


async def _carry_out(calls: AsyncCalls, frame: Frame, action: Action[Any]) -> Any:
    """Carry out the daemon's plan as the caller, and report the result to the daemon.

    It writes a promotion on the host, or pushes to a remote with this process's credentials.
    """
    from contextlib import suppress

    from paddock.client._blocking import arun_whole

    handle = _decoded(frame)
    done: dict[str, Any] = {}
    try:
        try:
            if handle.plan is not None:
                from paddock.client._promote import promote

                await arun_whole(promote, handle.plan, *frame.descriptors)
            else:
                from paddock.client._publish import publish

                done["published"] = await arun_whole(publish, handle, calls.state_dir)
        finally:
            close_all(frame.descriptors)
        return codec.decode_result(await calls.call(handle.handle, "finish", cancels=False, **done), type(action))
    finally:
        with suppress(DaemonLostError):  # it went with its daemon
            await calls.call(handle.handle, "close", cancels=False)


class _Handle:
    """A handle at the daemon. Freeing an open one calls its method `freed`, where it has such a method."""

    def __init__(self, calls: AsyncCalls, number: int, freed: str = "") -> None:
        self.calls, self.number, self._freed = calls, number, freed
        self._is_held = freed != ""

    async def call(self, method: str, *, cancels: bool = True, **fields: Any) -> bytes:
        return await self.calls.call(self.number, method, cancels=cancels, **fields)

    def end(self) -> bool:
        """Note that the caller closes the handle. Return whether it was open."""
        was_held, self._is_held = self._is_held, False
        return was_held

    def __del__(self) -> None:
        if self._is_held and not sys.is_finalizing():
            self.calls.give_up(handle_methods(self.number, self._freed))


class _Stream(_Handle):
    """A pipe, and the handle that it came with. Those of a command aren't its to close."""

    def __init__(self, calls: AsyncCalls, number: int, descriptor: int, freed: str = "") -> None:
        super().__init__(calls, number, freed)
        self.pipe = AsyncPipe(descriptor)


def _decoded(frame: Frame) -> codec.Handle:
    return codec.decode(frame.body, codec.Handle)


def _opened(calls: AsyncCalls, frame: Frame, freed: str) -> _Stream:
    return _Stream(calls, _decoded(frame).handle, frame.descriptors[0], freed)


class _Reader:
    """A stream to read. `method` checks at the end that all bytes have come. `command`: it is a command's."""

    def __init__(self, stream: _Stream, method: str, command: _Command | None = None) -> None:
        self._stream, self._method, self._command = stream, method, command
        self._ended, self._received = False, 0

    async def read(self, size: int = 65536) -> bytes:
        if self._ended:
            return b""
        while not (data := await self._stream.pipe.read(size)) and size:
            try:
                await self._stream.call(self._method)
            except (DaemonLostError, DaemonUnavailableError) as error:
                await self._follow(error)
            else:
                self._ended = True
                break
        self._received += len(data)
        return data

    async def _follow(self, why: PaddockError) -> None:
        """Continue at the next daemon, after all bytes of this one."""
        command = self._command
        while command is not None and await command.take_up(self._stream.number):
            self._stream.pipe.close()
            self._stream = command.streams.pop(self._method)
            try:
                await self._stream.call(self._method.replace("end", "from"), sent=self._received)
            except (DaemonLostError, DaemonUnavailableError):
                continue
            return
        try:
            raise why
        finally:
            del why  # else the exception and this frame would hold each other, and with them the stream

    async def aclose(self) -> None:
        self._stream.pipe.close()
        if self._stream.end():
            await self._stream.call("close", cancels=False)


class _Writer:
    def __init__(self, stream: _Stream) -> None:
        self._stream = stream

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[await self._stream.pipe.write(view) :]
            except BrokenPipeError:
                await self._stream.call("close")  # raises what broke it, if it was ours
                raise

    async def aclose(self) -> FileInfo | None:
        self._stream.pipe.close()
        if not self._stream.end():
            return None
        from paddock.model import FileInfo

        return codec.decode(await self._stream.call("close"), FileInfo | None)

    async def abort(self) -> None:
        self._stream.pipe.close()
        self._stream.end()
        await self._stream.call("abort", cancels=False)


class _PortConnection(_Reader, _Writer):
    """A connection to a port."""

    async def write_eof(self) -> None:
        await self._stream.call("eof")


class _Changes(_Handle):
    async def next(self) -> tuple[FileChange, ...]:
        from paddock.model import FileChange

        return codec.decode(await self.call("next"), tuple[FileChange, ...])

    async def aclose(self) -> None:
        if self.end():
            await self.call("close", cancels=False)


class _Command(_Handle):
    """A command, at its present daemon.

    Its handle and its streams share this object, so a kept stream keeps the command. It has no reference to them. So
    Python frees a dropped one at once.
    """

    def __init__(self, calls: AsyncCalls, handle: codec.Handle, action: Action[Any]) -> None:
        super().__init__(calls, handle.handle, "close")
        assert handle.id is not None
        self.id, self._action = ExecId(handle.id), action
        self.warns = not getattr(action, "background", True)
        """Whether freeing it is a ResourceWarning, because it kills a command that may still run."""
        self._taking = AsyncMutex()
        self.stdin: _Stream | None = None
        self.streams: dict[str, _Stream] = {}
        """Streams of the last daemon without a reader yet, by the method that ends each."""

    async def call(self, method: str, *, cancels: bool = True, **fields: Any) -> bytes:
        """Call a method of its handle. If the first daemon has ended, call a repeatable one at the next."""

        def unknown(problem: str) -> DaemonLostError:
            return lost(self._action, self.id, problem)

        while True:
            number = self.number
            try:
                return await self.calls.call(number, method, cancels=cancels, lost=unknown, **fields)
            except (DaemonLostError, DaemonUnavailableError):
                if not await self.take_up(number) or method not in _AGAIN:
                    raise

    async def take_up(self, before: int) -> bool:
        """Follow it at the next daemon, if that one has it. `before`: the handle at the daemon that has ended."""
        if not isinstance(self._action, StartExec) or self._action.background:
            return False
        async with self._taking:
            if self.number != before:
                return True
            descriptors: tuple[int, ...] = ()
            try:
                if self.stdin is not None and not self.stdin.pipe.closed:
                    descriptors = (self.stdin.pipe.reader(),)
                action = AttachExec(sandbox=self._action.sandbox, exec=self.id)
                body, _ = request_of(action, os.urandom(16).hex(), has_input=bool(descriptors))
                frame = await self.calls.ask(body, descriptors, repeatable=True)
            except (PaddockError, OSError):
                return False
            finally:
                close_all(descriptors)
            handle = _decoded(frame)
            self.streams = _streams(self.calls, handle, frame)
            self.number = handle.handle
            return True

    def __del__(self) -> None:
        if self._is_held and self.warns and not sys.is_finalizing():
            import warnings

            warnings.warn(f"command {self.id} was never closed", ResourceWarning, stacklevel=2, source=self)
        super().__del__()


def _streams(calls: AsyncCalls, handle: codec.Handle, frame: Frame) -> dict[str, _Stream]:
    """Return the streams of a command, by the method that ends each."""
    return {
        f"{name}.end": _Stream(calls, handle.handle, descriptor)
        for name, descriptor in zip(handle.streams, frame.descriptors, strict=True)
    }


_AGAIN = frozenset(("close", "kill", "resize", "wait", "stdin.close", "stdin.abort"))
"""Methods of a command that can run twice."""


class _Input(_Writer):
    """The stdin of a command.

    The pipe stays open until all data has arrived: the next daemon may have to continue it.
    """

    def __init__(self, stream: _Stream, command: _Command) -> None:
        super().__init__(stream)
        self._command, self._is_closed = command, False

    async def write(self, data: bytes) -> None:
        if self._is_closed:
            raise InvalidStateError("this stream is closed")
        view = memoryview(data)
        while view:
            number = self._command.number
            try:
                view = view[await self._stream.pipe.write(view) :]
            except BrokenPipeError:
                try:
                    await self._stream.calls.call(number, "stdin.close")  # raises what broke it, if it was ours
                except (DaemonLostError, DaemonUnavailableError):
                    if await self._command.take_up(number):
                        continue
                    raise
                raise

    async def aclose(self) -> None:
        await self._end("stdin.close")

    async def abort(self) -> None:
        await self._end("stdin.abort", cancels=False)

    async def _end(self, method: str, *, cancels: bool = True) -> None:
        if self._is_closed or self._stream.pipe.closed:
            return
        self._is_closed = True
        try:
            await self._command.call(method, cancels=cancels)
        finally:
            self._stream.pipe.close()


class _Exec:
    def __init__(self, calls: AsyncCalls, frame: Frame, action: Action[Any]) -> None:
        handle = _decoded(frame)
        assert handle.pid is not None
        self._command = command = _Command(calls, handle, action)
        self.id, self.pid = command.id, handle.pid
        streams = _streams(calls, handle, frame)
        command.stdin = stdin = streams.get("stdin.end")
        self.stdin = None if stdin is None else _Input(stdin, command)
        self.stdout, self.stderr = (
            _Reader(streams[method], method, command) if method in streams else None
            for method in ("stdout.end", "stderr.end")
        )

    async def wait(self, seconds: float | None = None) -> ExitStatus:
        from paddock.model import ExitStatus

        status: ExitStatus = codec.decode(await self._command.call("wait", seconds=seconds), ExitStatus)
        self._command.warns = False
        return status

    async def signal(self, number: int) -> None:
        await self._command.call("signal", number=number)

    async def kill(self) -> None:
        await self._command.call("kill", cancels=False)

    async def resize(self, size: PtySize) -> None:
        await self._command.call("resize", size=size)

    async def aclose(self) -> None:
        command = self._command
        if not command.end():
            return
        try:
            await command.call("close", cancels=False)
        except DaemonLostError:
            pass  # no daemon has it: it has ended, or runs in the background
        for reader in (self.stdout, self.stderr):
            if reader is not None:
                await reader.aclose()
        for stream in (command.stdin, *command.streams.values()):
            if stream is not None:
                stream.pipe.close()
