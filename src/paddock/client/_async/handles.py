"""Handles at the daemon, and the streams that came with them.

The bytes of a handle flow through descriptors, with the daemon at the other end. All other methods of a handle are
calls.
"""

from __future__ import annotations

import os
import sys

from paddock.client._async_connections import AsyncMutex, AsyncPipe
from paddock.client._session import handle_methods, request_of
from paddock.errors import DaemonLostError, DaemonUnavailableError, PaddockError
from paddock.model import AttachExec, ExecId, StartExec, codec
from paddock.wire import Frame, close_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Self

    from paddock.model import Action, FileInfo

    from .calls import AsyncCalls

_CHUNK_BYTES = 1 << 20


class AsyncBlock:
    """What a `with` block closes."""

    async def aclose(self) -> object: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Handle:
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
            self.calls.session.give_up(handle_methods(self.number, self._freed))


class Stream(Handle):
    """A pipe, and the handle that it came with. Those of a command aren't its to close."""

    def __init__(self, calls: AsyncCalls, number: int, descriptor: int, freed: str = "") -> None:
        super().__init__(calls, number, freed)
        self.pipe = AsyncPipe(descriptor)


def decoded(frame: Frame) -> codec.Handle:
    return codec.decode(frame.body, codec.Handle)


class Incoming(AsyncBlock):
    """A stream to read. `method` checks at the end that all bytes have come. `command`: it is a command's."""

    def __init__(self, stream: Stream, method: str, command: Command | None = None) -> None:
        self._stream, self._method, self._command = stream, method, command
        self._ended, self._received = False, 0

    @classmethod
    def opened(cls, calls: AsyncCalls, frame: Frame) -> Self:
        return cls(Stream(calls, decoded(frame).handle, frame.descriptors[0], "close"), "end")

    async def _receive(self, size: int) -> bytes:
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


class Outgoing(AsyncBlock):
    """A stream to write."""

    _ended_by = "close"
    """The method that raises what broke it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    @classmethod
    def opened(cls, calls: AsyncCalls, frame: Frame) -> Self:
        return cls(Stream(calls, decoded(frame).handle, frame.descriptors[0], "abort"))

    async def _send(self, data: bytes) -> None:
        view = memoryview(data).cast("B")
        while view:
            try:
                view = view[await self._stream.pipe.write(view[:_CHUNK_BYTES]) :]
            except BrokenPipeError:
                await self._stream.call(self._ended_by)  # raises what broke it, if it was ours
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


class Command(Handle):
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
        self.stdin: Stream | None = None
        self.streams: dict[str, Stream] = {}
        """Streams of the last daemon without a reader yet, by the method that ends each."""

    async def call(self, method: str, *, cancels: bool = True, **fields: Any) -> bytes:
        """Call a method of its handle. If the first daemon has ended, call a repeatable one at the next."""
        while True:
            number = self.number
            body = handle_methods(number, method, id=os.urandom(16).hex(), **fields)
            try:
                return (await self.calls.ask(body, (), cancels=cancels, action=self._action, id=self.id)).body
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
            handle = decoded(frame)
            self.streams = streams_of(self.calls, handle, frame)
            self.number = handle.handle
            return True

    def __del__(self) -> None:
        if self._is_held and self.warns and not sys.is_finalizing():
            import warnings

            warnings.warn(f"command {self.id} was never closed", ResourceWarning, stacklevel=2, source=self)
        super().__del__()


def streams_of(calls: AsyncCalls, handle: codec.Handle, frame: Frame) -> dict[str, Stream]:
    """Return the streams of a command, by the method that ends each."""
    return {
        f"{name}.end": Stream(calls, handle.handle, descriptor)
        for name, descriptor in zip(handle.streams, frame.descriptors, strict=True)
    }


_AGAIN = frozenset(("close", "kill", "resize", "wait", "stdin.close", "stdin.abort"))
"""Methods of a command that can run twice."""
