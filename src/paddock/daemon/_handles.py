"""Handles in a client's hands: its descriptors carry the bytes, and `Call`s everything else.

The near ends of the descriptors stay here, so what the service counts, redacts and records holds whatever the client
does. A stream's error is told by the call that ends it: `end` of one that is read, `close` of one that is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from paddock.backends._pump import Flow, Pump, draw, pour
from paddock.errors import InvalidArgument, PaddockError
from paddock.model import (
    ByteReader,
    ByteStream,
    ByteWriter,
    ChangeStream,
    ExecHandle,
)
from paddock.model.codec import Call
from paddock.model.codec import Handle as HandleReply

if TYPE_CHECKING:
    from paddock.service._mount_results import Promoting
    from paddock.service._publication import Publishing

Method = Callable[[Call], Coroutine[Any, Any, object]]


_PIPE_BYTES = 1 << 20


class Output:
    """A stream that the client reads. `near` is closed at its end."""

    def __init__(self, inner: ByteReader, near: int, pump: Pump) -> None:
        self._inner = inner
        self._task = asyncio.ensure_future(self._run(Flow(pump, near)))  # ended by `end`
        self._task.add_done_callback(lambda _: os.close(near))

    async def _run(self, flow: Flow) -> BaseException | None:
        try:
            await pour(self._inner, flow)
        except BrokenPipeError:  # the client has closed its end: the command's writes fail from now on
            with contextlib.suppress(PaddockError):
                await self._inner.aclose()
        except Exception as error:
            return error
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
    """A stream that the client writes. `near` is closed at its end."""

    def __init__(self, inner: ByteWriter, near: int, pump: Pump) -> None:
        self._inner, self._flow = inner, Flow(pump, near)
        self._task = asyncio.ensure_future(self._run())  # ended by `close` and `abort`
        self._task.add_done_callback(lambda _: os.close(near))

    async def _run(self) -> BaseException | None:
        try:
            await draw(self._inner, self._flow)
        except Exception as error:
            return error
        return None

    async def end(self, sent: int) -> None:
        """Return when all that the client has sent has been written on, or no more of it will be."""
        self._flow.end_at(sent)
        error = await asyncio.shield(self._task)
        if error is not None and not isinstance(error, BrokenPipeError):  # the client has seen that one itself
            raise error

    async def close(self, sent: int) -> object:
        await self.end(sent)
        return await self._inner.aclose()

    async def abort(self) -> None:
        await self.stop()
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
    def __init__(self, number: int, inner: ByteReader, pump: Pump) -> None:
        super().__init__()
        far, near = _out()
        self._inner, self._output = inner, Output(inner, near, pump)
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
    def __init__(self, number: int, inner: ByteWriter, pump: Pump) -> None:
        super().__init__()
        far, near = _in()
        self._input = Input(inner, near, pump)
        self.reply, self.descriptors = HandleReply(handle=number, streams=("in",)), (far,)
        self.methods = {"close": self._close, "abort": self._abort}

    async def _close(self, call: Call) -> object:
        return await self._input.close(call.sent or 0)

    async def _abort(self, call: Call) -> None:
        await self._input.abort()

    async def let_go(self) -> None:
        await self._input.abort()


class OpenedStream(Opened):
    def __init__(self, number: int, inner: ByteStream, pump: Pump) -> None:
        super().__init__()
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        self._inner = inner
        self._output = Output(inner, os.dup(self._socket.fileno()), pump)
        self._input = Input(inner, os.dup(self._socket.fileno()), pump)
        self._after = asyncio.ensure_future(self._half_close())  # ended by `_stop`
        self.reply, self.descriptors = HandleReply(handle=number, streams=("both",)), (theirs.detach(),)
        self.methods = {"end": self._end, "close": self._close, "abort": self._abort, "eof": self._eof}

    async def _half_close(self) -> None:
        """So that the client sees an end when the service's side has ended."""
        with contextlib.suppress(Exception):  # `end` tells
            await self._output.end(wait=True)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    async def _end(self, call: Call) -> None:
        await self._output.end(wait=True)

    async def _eof(self, call: Call) -> None:
        await self._input.end(call.sent or 0)
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
        await self._input.stop()
        self._after.cancel()
        await asyncio.wait((self._after,))
        self._socket.close()


class OpenedPromotion(Opened):
    def __init__(self, number: int, inner: Promoting, pump: Pump) -> None:
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


class OpenedPublication(Opened):
    def __init__(self, number: int, inner: Publishing, pump: Pump) -> None:
        super().__init__()
        self._inner = inner
        self.reply = HandleReply(handle=number, push=inner.push, pull_request=inner.pull_request)
        self.descriptors = ()
        self.methods = {"finish": self._finish, "close": self._close}

    async def _finish(self, call: Call) -> object:
        if call.published is None:
            raise InvalidArgument("what became of it is missing")
        return await self._inner.finish(call.published)

    async def _close(self, call: Call) -> None:
        await self.let_go()

    async def let_go(self) -> None:
        await self._inner.aclose()


class OpenedWatch(Opened):
    def __init__(self, number: int, inner: ChangeStream, pump: Pump) -> None:
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
    def __init__(self, number: int, inner: ExecHandle, pump: Pump) -> None:
        super().__init__()
        self._inner = inner
        self._input: Input | None = None
        self._outputs: dict[str, Output] = {}
        names: list[str] = []
        descriptors: list[int] = []
        if inner.stdin is not None:
            far, near = _in()
            self._input = Input(inner.stdin, near, pump)
            names.append("stdin")
            descriptors.append(far)
        for name, reader in (("stdout", inner.stdout), ("stderr", inner.stderr)):
            if reader is not None:
                far, near = _out()
                self._outputs[name] = Output(reader, near, pump)
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


def pipe() -> tuple[int, int]:
    """Ends to read and to write, with as much room as this user may still have (pipe(7))."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # /proc/sys/fs/pipe-user-pages-soft: the usual 64 KiB do as well
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return reading, writing
