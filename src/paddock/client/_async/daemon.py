"""The transport to the daemon, and the handles in its answers.

The bytes of a handle flow through descriptors, with the daemon at the other end. All other methods of a handle are
calls.
"""

from __future__ import annotations

import os
import sys

from paddock.client._async_connections import AsyncMutex, AsyncPipe
from paddock.client._session import Lease, handle_methods, lost, new_id, request_of, session, undo_of
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
                return _Reader(_opened(self._calls, frame), method="end")
            case "ByteWriter":
                return _Writer(_opened(self._calls, frame))
            case "ByteStream":
                return _Both(_opened(self._calls, frame), method="end")
            case "ChangeStream":
                return _Changes(self._calls, frame)
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
    from paddock.errors import DaemonLostError

    handle: codec.Handle = codec.decode(frame.body, codec.Handle)
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


class _Stream:
    """A descriptor, and the handle that ends it."""

    def __init__(self, calls: AsyncCalls, handle: int, descriptor: int) -> None:
        self.calls, self.handle = calls, handle
        self.pipe = AsyncPipe(descriptor)

    async def call(self, method: str, *, cancels: bool = True, **fields: Any) -> bytes:
        return await self.calls.call(self.handle, method, cancels=cancels, **fields)


def _opened(calls: AsyncCalls, frame: Frame) -> _Stream:
    handle: codec.Handle = codec.decode(frame.body, codec.Handle)
    return _Stream(calls, handle.handle, frame.descriptors[0])


class _End:
    """The caller's end of a stream. Freeing one without a lease calls the method `_freed` of the handle."""

    _freed = "close"

    def __init__(self, stream: _Stream, *, lease: Lease | None = None) -> None:
        self._stream, self._lease = stream, lease

    def drop(self) -> None:
        """Close the pipe, after its handle."""
        self._stream.pipe.close()

    def __del__(self) -> None:
        if self._lease is None and not sys.is_finalizing() and self._stream.pipe.close():
            self._stream.calls.give_up(handle_methods(self._stream.handle, self._freed))


class _Reader(_End):
    """A stream to read.

    `method` checks at the end that all bytes have come. Without a `lease` it closes the handle with it.
    """

    def __init__(
        self, stream: _Stream, *, method: str, lease: Lease | None = None, followed: _Followed | None = None
    ) -> None:
        super().__init__(stream, lease=lease)
        self._method, self._followed = method, followed
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
        followed = self._followed
        while followed is not None and await followed.take_up(self._stream.handle):
            self._stream.pipe.close()
            self._stream = followed.streams.pop(self._method)
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
        if self._stream.pipe.close() and self._lease is None:
            await self._stream.call("close", cancels=False)


class _Writer(_End):
    _freed = "abort"

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[await self._stream.pipe.write(view) :]
            except BrokenPipeError:
                await self._stream.call("close")  # raises what broke it, if it was ours
                raise

    async def aclose(self) -> FileInfo | None:
        if not self._stream.pipe.close():
            return None
        from paddock.model import FileInfo

        return codec.decode(await self._stream.call("close"), FileInfo | None)

    async def abort(self) -> None:
        self._stream.pipe.close()
        await self._stream.call("abort", cancels=False)


class _Both(_Reader, _Writer):
    """A connection to a port."""

    _freed = "close"

    async def write_eof(self) -> None:
        await self._stream.call("eof")


class _Changes:
    def __init__(self, calls: AsyncCalls, frame: Frame) -> None:
        self._calls = calls
        self._handle: int = codec.decode(frame.body, codec.Handle).handle
        self._open = True

    async def next(self) -> tuple[FileChange, ...]:
        from paddock.model import FileChange

        return codec.decode(await self._calls.call(self._handle, "next"), tuple[FileChange, ...])

    async def aclose(self) -> None:
        if self._open:
            self._open = False
            await self._calls.call(self._handle, "close", cancels=False)

    def __del__(self) -> None:
        if self._open and not sys.is_finalizing():
            self._calls.give_up(handle_methods(self._handle, "close"))


class _Followed:
    """A command, at its present daemon.

    Its handle and its streams share this object, which has no reference to them. So Python frees a dropped one at once.
    """

    def __init__(self, calls: AsyncCalls, handle: int, action: Action[Any], id: ExecId, lease: Lease) -> None:
        self._calls, self.handle, self._action, self._id, self._lease = calls, handle, action, id, lease
        self._taking = AsyncMutex()
        self.stdin: _Stream | None = None
        self.streams: dict[str, _Stream] = {}
        """Streams of the last daemon without a reader yet, by the method that ends each."""

    async def call(self, method: str, *, cancels: bool = True, **fields: Any) -> bytes:
        """Call a method of its handle. If the first daemon has ended, call a repeatable one at the next."""

        def unknown(problem: str) -> DaemonLostError:
            return lost(self._action, self._id, problem)

        while True:
            handle = self.handle
            try:
                return await self._calls.call(handle, method, cancels=cancels, lost=unknown, **fields)
            except (DaemonLostError, DaemonUnavailableError):
                if not await self.take_up(handle) or method not in _AGAIN:
                    raise

    async def take_up(self, before: int) -> bool:
        """Follow it at the next daemon, if that one has it. `before`: the handle at the daemon that has ended."""
        if not isinstance(self._action, StartExec) or self._action.background:
            return False
        async with self._taking:
            if self.handle != before:
                return True
            descriptors: tuple[int, ...] = ()
            try:
                if self.stdin is not None and not self.stdin.pipe.closed:
                    descriptors = (self.stdin.pipe.reader(),)
                action = AttachExec(sandbox=self._action.sandbox, exec=self._id)
                body, _ = request_of(action, os.urandom(16).hex(), has_input=bool(descriptors))
                frame = await self._calls.ask(body, descriptors, repeatable=True)
            except (PaddockError, OSError):
                return False
            finally:
                close_all(descriptors)
            self.streams = _streams(self._calls, frame)
            handle: codec.Handle = codec.decode(frame.body, codec.Handle)
            self.handle = handle.handle
            self._lease.renew(handle)
            return True


def _streams(calls: AsyncCalls, frame: Frame) -> dict[str, _Stream]:
    """Return the streams of a command, by the method that ends each."""
    handle: codec.Handle = codec.decode(frame.body, codec.Handle)
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

    def __init__(self, stream: _Stream, lease: Lease, followed: _Followed) -> None:
        super().__init__(stream, lease=lease)
        self._followed, self._is_closed = followed, False

    async def write(self, data: bytes) -> None:
        if self._is_closed:
            raise InvalidStateError("this stream is closed")
        view = memoryview(data)
        while view:
            handle = self._followed.handle
            try:
                view = view[await self._stream.pipe.write(view) :]
            except BrokenPipeError:
                try:
                    await self._stream.calls.call(handle, "stdin.close")  # raises what broke it, if it was ours
                except (DaemonLostError, DaemonUnavailableError):
                    if await self._followed.take_up(handle):
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
            await self._followed.call(method, cancels=cancels)
        finally:
            self._stream.pipe.close()


class _Exec:
    def __init__(self, calls: AsyncCalls, frame: Frame, action: Action[Any]) -> None:
        handle: codec.Handle = codec.decode(frame.body, codec.Handle)
        assert handle.id is not None
        assert handle.pid is not None
        self.id, self.pid = ExecId(handle.id), handle.pid
        self._lease = lease = Lease(calls.give_up, handle, warns=not getattr(action, "background", True))
        self._followed = followed = _Followed(calls, handle.handle, action, self.id, lease)
        streams = _streams(calls, frame)
        stdin, stdout, stderr = (streams.get(name) for name in ("stdin.end", "stdout.end", "stderr.end"))
        followed.stdin = stdin
        self.stdin = None if stdin is None else _Input(stdin, lease, followed)
        self.stdout, self.stderr = (
            None if stream is None else _Reader(stream, method=method, lease=lease, followed=followed)
            for stream, method in ((stdout, "stdout.end"), (stderr, "stderr.end"))
        )

    async def wait(self, seconds: float | None = None) -> ExitStatus:
        from paddock.model import ExitStatus

        status: ExitStatus = codec.decode(await self._followed.call("wait", seconds=seconds), ExitStatus)
        self._lease.over()
        return status

    async def signal(self, number: int) -> None:
        await self._followed.call("signal", number=number)

    async def kill(self) -> None:
        await self._followed.call("kill", cancels=False)

    async def resize(self, size: PtySize) -> None:
        await self._followed.call("resize", size=size)

    async def aclose(self) -> None:
        if self._lease.end():
            try:
                await self._followed.call("close", cancels=False)
            except DaemonLostError:
                pass  # no daemon has it: it has ended, or runs in the background
            for end in (self.stdin, self.stdout, self.stderr):
                if end is not None:
                    end.drop()
            while self._followed.streams:
                self._followed.streams.popitem()[1].pipe.close()
