"""Handles in a client's hands: its descriptors carry the bytes, and `Call`s everything else.

The near ends of the descriptors stay here, so what the service counts, redacts and records holds whatever the client
does. A stream's error is told by the call that ends it: `end` of one that is read, `close` of one that is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any

from paddock.errors import InvalidArgument, PaddockError
from paddock.model import ByteReader, ByteStream, ByteWriter, ChangeStream, ExecHandle, PromotionHandle
from paddock.model.codec import Call
from paddock.model.codec import Handle as HandleReply

from ._pump import Intake, drain, pipe

Method = Callable[[Call], Coroutine[Any, Any, object]]


class Output:
    """A stream that the client reads."""

    def __init__(self, inner: ByteReader, near: int) -> None:
        self._inner = inner
        self._task = asyncio.ensure_future(self._run(near))  # ended by `end`

    async def _run(self, near: int) -> BaseException | None:
        try:
            await drain(self._inner.read, near)
        except BrokenPipeError:  # the client has closed its end: the command's writes fail from now on
            with contextlib.suppress(PaddockError):
                await self._inner.aclose()
        except Exception as error:
            return error
        finally:
            os.close(near)
        return None

    async def end(self, *, wait: bool) -> None:
        """Raises what broke the stream. Without `wait` it is over now, whatever is still to come."""
        if not wait:
            self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            error = await asyncio.shield(self._task) if wait else await self._task
            if error is not None:
                raise error


class Input:
    """A stream that the client writes."""

    def __init__(self, inner: ByteWriter, near: int) -> None:
        self._inner, self._near = inner, near
        self._intake = Intake(near, inner.write)
        self._task = asyncio.ensure_future(self._run())  # ended by `close` and `abort`

    async def _run(self) -> BaseException | None:
        try:
            await self._intake.run()
        except Exception as error:
            return error
        finally:
            os.close(self._near)
        return None

    async def close(self, sent: int) -> object:
        await self._intake.arrived(sent)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            error = await self._task
            if error is not None and not isinstance(error, BrokenPipeError):  # the client has seen that one itself
                raise error
        return await self._inner.aclose()

    async def abort(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._inner.abort()

    async def stop(self) -> None:
        """No byte more, and nothing else: the command to which it belongs is let go of."""
        self._task.cancel()
        await asyncio.wait((self._task,))


class Opened(ABC):
    """One handle of a session: `reply` and `descriptors` are what the client is given."""

    reply: HandleReply
    descriptors: tuple[int, ...]

    def __init__(self) -> None:
        self.methods: dict[str, Method] = {}

    async def call(self, call: Call) -> object:
        method = self.methods.get(call.method)
        if method is None:
            raise InvalidArgument(f"this handle has no method {call.method!r}")
        return await method(call)

    @abstractmethod
    async def let_go(self) -> None:
        """The client has gone, or never had it."""


class OpenedReader(Opened):
    def __init__(self, number: int, inner: ByteReader) -> None:
        super().__init__()
        far, near = _out()
        self._inner, self._output = inner, Output(inner, near)
        self.reply, self.descriptors = HandleReply(handle=number, streams=("out",)), (far,)
        self.methods = {"end": self._end, "close": self._close}

    async def _end(self, call: Call) -> None:
        await self._output.end(wait=True)

    async def _close(self, call: Call) -> None:
        await self.let_go()

    async def let_go(self) -> None:
        try:
            await self._output.end(wait=False)
        finally:
            await self._inner.aclose()


class OpenedWriter(Opened):
    def __init__(self, number: int, inner: ByteWriter) -> None:
        super().__init__()
        far, near = _in()
        self._input = Input(inner, near)
        self.reply, self.descriptors = HandleReply(handle=number, streams=("in",)), (far,)
        self.methods = {"close": self._close, "abort": self._abort}

    async def _close(self, call: Call) -> object:
        return await self._input.close(call.sent or 0)

    async def _abort(self, call: Call) -> None:
        await self._input.abort()

    async def let_go(self) -> None:
        await self._input.abort()


class OpenedStream(Opened):
    def __init__(self, number: int, inner: ByteStream) -> None:
        super().__init__()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._inner = inner
        self._output = Output(inner, os.dup(ours.fileno()))
        self._socket = ours
        self._intake = Intake(ours.fileno(), inner.write)
        self._task = asyncio.ensure_future(self._take())  # ended by `let_go`
        self._after = asyncio.ensure_future(self._half_close())  # the same
        self.reply, self.descriptors = HandleReply(handle=number, streams=("both",)), (theirs.detach(),)
        self.methods = {"end": self._end, "close": self._close, "abort": self._abort, "eof": self._eof}

    async def _take(self) -> BaseException | None:
        try:
            await self._intake.run()
        except Exception as error:
            return error
        return None

    async def _half_close(self) -> None:
        """So that the client sees an end when the service's side has ended."""
        await self._output.end(wait=True)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    async def _end(self, call: Call) -> None:
        await self._output.end(wait=True)

    async def _eof(self, call: Call) -> None:
        await self._intake.arrived(call.sent or 0)
        if self._task.done() and (error := self._task.result()) is not None:
            raise error
        await self._inner.write_eof()

    async def _close(self, call: Call) -> None:
        await self._stop()
        await self._inner.aclose()

    async def _abort(self, call: Call) -> None:
        await self.let_go()

    async def let_go(self) -> None:
        await self._stop()
        await self._inner.abort()

    async def _stop(self) -> None:
        with contextlib.suppress(Exception):
            await self._output.end(wait=False)
        for task in (self._task, self._after):
            task.cancel()
        await asyncio.wait((self._task, self._after))
        self._socket.close()


class OpenedPromotion(Opened):
    def __init__(self, number: int, inner: PromotionHandle) -> None:
        super().__init__()
        self._inner = inner
        self.reply = HandleReply(handle=number, streams=("layer", "journal"), plan=inner.plan)
        self.descriptors = (os.dup(inner.layer), os.dup(inner.journal))
        self.methods = {"finish": self._finish, "close": self._close}

    async def _finish(self, call: Call) -> object:
        return await self._inner.finish()

    async def _close(self, call: Call) -> None:
        await self.let_go()

    async def let_go(self) -> None:
        await self._inner.aclose()


class OpenedWatch(Opened):
    def __init__(self, number: int, inner: ChangeStream) -> None:
        super().__init__()
        self._inner = inner
        self.reply, self.descriptors = HandleReply(handle=number), ()
        self.methods = {"next": self._next, "close": self._close}

    async def _next(self, call: Call) -> object:
        return await self._inner.next()

    async def _close(self, call: Call) -> None:
        await self._inner.aclose()

    async def let_go(self) -> None:
        await self._inner.aclose()


class OpenedExec(Opened):
    def __init__(self, number: int, inner: ExecHandle) -> None:
        super().__init__()
        self._inner = inner
        self._input: Input | None = None
        self._outputs: dict[str, Output] = {}
        names: list[str] = []
        descriptors: list[int] = []
        if inner.stdin is not None:
            far, near = _in()
            self._input = Input(inner.stdin, near)
            names.append("stdin")
            descriptors.append(far)
        for name, reader in (("stdout", inner.stdout), ("stderr", inner.stderr)):
            if reader is not None:
                far, near = _out()
                self._outputs[name] = Output(reader, near)
                names.append(name)
                descriptors.append(far)
        self.reply = HandleReply(handle=number, streams=tuple(names), id=inner.id, pid=inner.pid)
        self.descriptors = tuple(descriptors)
        self.methods = {
            "wait": self._wait,
            "signal": self._signal,
            "kill": self._kill,
            "resize": self._resize,
            "close": self._close,
            "stdin.close": self._stdin_close,
            "stdin.abort": self._stdin_abort,
            "stdout.end": lambda call: self._outputs["stdout"].end(wait=True),
            "stderr.end": lambda call: self._outputs["stderr"].end(wait=True),
        }

    async def _wait(self, call: Call) -> object:
        return await self._inner.wait()

    async def _signal(self, call: Call) -> None:
        await self._inner.signal(signal.SIGTERM if call.number is None else call.number)

    async def _kill(self, call: Call) -> None:
        await self._inner.kill()

    async def _resize(self, call: Call) -> None:
        if call.size is None:
            raise InvalidArgument("a terminal's new size is missing")
        await self._inner.resize(call.size)

    async def _close(self, call: Call) -> None:
        await self.let_go()

    async def _stdin_close(self, call: Call) -> None:
        if self._input is not None:
            await self._input.close(call.sent or 0)

    async def _stdin_abort(self, call: Call) -> None:
        if self._input is not None:
            await self._input.abort()

    async def let_go(self) -> None:
        if self._input is not None:
            await self._input.stop()
        for output in self._outputs.values():
            with contextlib.suppress(Exception):
                await output.end(wait=False)
        await self._inner.aclose()


def _out() -> tuple[int, int]:
    """The client's end and ours, which does not block."""
    far, near = pipe()
    os.set_blocking(near, False)
    return far, near


def _in() -> tuple[int, int]:
    near, far = pipe()
    os.set_blocking(near, False)
    return far, near
