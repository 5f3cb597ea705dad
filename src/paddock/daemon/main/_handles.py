"""Serve handles of a client: its descriptors carry the bytes, and `Call`s everything else.

The near ends of the descriptors stay here, so a client can't avoid what the service counts, redacts and records. The
call that ends a stream raises its error: `end` of one that is read, `close` of one that is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from paddock import model
from paddock.backends.pump import Flow, Pump, draw, pour
from paddock.errors import InvalidArgumentError, logged
from paddock.model.codec import Call
from paddock.model.codec import Handle as HandleReply
from paddock.wire import close_all

if TYPE_CHECKING:
    from paddock.daemon.workspaces.mounts import PendingPromotion
    from paddock.daemon.workspaces.results import PendingPublication

Method: TypeAlias = Callable[[Call], Awaitable[object]]
_PIPE_BYTES = 1 << 20


class _Stream(ABC):
    """Move a stream between a client and the service. `near` is closed at its end."""

    def __init__(self, near: int, pump: Pump) -> None:
        self._flow = Flow(pump, near)
        self.task = asyncio.ensure_future(self._run())  # ended by `stop`
        self.task.add_done_callback(lambda _: os.close(near))

    @abstractmethod
    async def _move(self) -> None:
        """Move all that comes."""

    async def _run(self) -> Exception | None:
        try:
            await self._move()
        except Exception as error:
            return error
        return None

    async def end(self, _: object = None) -> None:
        """Wait until it has ended, and raise its error."""
        await asyncio.wait((self.task,))
        if not self.task.cancelled() and (error := self.task.result()) is not None:
            raise error

    async def stop(self) -> None:
        """Stop at this byte, even if more would come."""
        self.task.cancel()
        await asyncio.wait((self.task,))


class Output(_Stream):
    """Carry a stream that the client reads. `of` names it in the log. With `waits` it starts at `begin`."""

    def __init__(self, inner: model.ByteReader, near: int, pump: Pump, of: str, *, waits: bool = False) -> None:
        self._inner, self._of, self._begun = inner, of, asyncio.Event()
        if not waits:
            self._begun.set()
        super().__init__(near, pump)

    async def _move(self) -> None:
        await self._begun.wait()
        try:
            await pour(self._inner, self._flow)
        except BrokenPipeError:  # the client has closed its end: the command's writes fail from now on
            with logged("close the stream that its client has left", self._of):
                await self._inner.aclose()

    async def begin(self, call: Call) -> None:
        """Note how many bytes of the stream the caller has. A caller knows that only after reading all that came."""
        if not self._begun.is_set():
            self._flow.skip = call.sent or 0
            self._begun.set()


class Input(_Stream):
    """Carry a stream that the client writes."""

    def __init__(self, inner: model.ByteWriter, near: int, pump: Pump) -> None:
        self._inner = inner
        super().__init__(near, pump)

    async def _move(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # the client has seen that one itself
            await draw(self._inner, self._flow)

    async def end(self, _: object = None) -> None:
        """Return when all that the client sent has been written on, or when no more will be."""
        self._flow.cut()
        await super().end()

    async def close(self, _: object = None) -> object:
        await self.end()
        return await self._inner.aclose()

    async def abort(self, _: object = None) -> None:
        await self.stop()
        await self._inner.abort()


class Opened:
    """Hold one handle of a session: the client gets `reply` and `descriptors`.

    `let_go` closes it when its client has gone; `close` does the same unless `methods` has another. `leave` closes what
    its client never got: like `let_go`, unless it is given.
    """

    def __init__(
        self,
        reply: HandleReply,
        let_go: Callable[[], Awaitable[object]],
        methods: Mapping[str, Method],
        descriptors: tuple[int, ...] = (),
        leave: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.reply, self.let_go, self.descriptors = reply, let_go, descriptors
        self.leave = leave or let_go
        self._methods: dict[str, Method] = {"close": lambda _: let_go(), "leave": lambda _: self.leave(), **methods}

    async def call(self, call: Call) -> object:
        method = self._methods.get(call.method)
        if method is None:
            raise InvalidArgumentError(f"this handle has no method {call.method!r}")
        return await method(call)


def open_reader(number: int, inner: model.ByteReader, pump: Pump) -> Opened:
    far, near = _ends(reads=True)
    output = Output(inner, near, pump, f"handle {number}")

    async def let_go() -> None:
        try:
            await output.stop()
            await output.end()
        finally:
            await inner.aclose()

    reply = HandleReply(handle=number, streams=("out",))
    return Opened(reply, let_go, {"end": output.end}, (far,))


def open_writer(number: int, inner: model.ByteWriter, pump: Pump) -> Opened:
    far, near = _ends(reads=False)
    input = Input(inner, near, pump)
    reply = HandleReply(handle=number, streams=("in",))
    return Opened(reply, input.abort, {"close": input.close, "abort": input.abort}, (far,))


def open_stream(number: int, inner: model.ByteStream, pump: Pump) -> Opened:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    output = Output(inner, os.dup(ours.fileno()), pump, f"handle {number}")
    input = Input(inner, os.dup(ours.fileno()), pump)

    def half_close(how: int) -> Callable[[object], None]:
        """Let the client see that this direction has ended at the service's side."""

        def close(_: object) -> None:
            with contextlib.suppress(OSError):  # closed by now
                ours.shutdown(how)

        return close

    output.task.add_done_callback(half_close(socket.SHUT_WR))
    input.task.add_done_callback(half_close(socket.SHUT_RD))

    async def stop() -> None:
        await output.stop()
        await input.stop()
        ours.close()

    async def eof(call: Call) -> None:
        await input.end()
        await inner.write_eof()

    async def close(call: Call) -> None:
        await stop()
        await inner.aclose()

    async def let_go() -> None:
        await stop()
        await inner.abort()

    reply = HandleReply(handle=number, streams=("both",))
    methods: dict[str, Method] = {
        "end": output.end,
        "close": close,
        "abort": lambda _: let_go(),
        "eof": eof,
    }
    return Opened(reply, let_go, methods, (theirs.detach(),))


def open_promotion(number: int, inner: PendingPromotion, pump: Pump) -> Opened:
    reply = HandleReply(handle=number, streams=("layer", "journal"), plan=inner.plan)
    descriptors = (os.dup(inner.layer), os.dup(inner.journal))
    return Opened(reply, inner.aclose, {"finish": lambda _: inner.finish()}, descriptors)


def open_publication(number: int, inner: PendingPublication, pump: Pump) -> Opened:
    async def finish(call: Call) -> object:
        if call.published is None:
            raise InvalidArgumentError("what became of it is missing")
        return await inner.finish(call.published)

    reply = HandleReply(handle=number, push=inner.push, pull_request=inner.pull_request)
    return Opened(reply, inner.aclose, {"finish": finish})


def open_watch(number: int, inner: model.ChangeStream, pump: Pump) -> Opened:
    return Opened(HandleReply(handle=number), inner.aclose, {"next": lambda _: inner.next()})


def open_exec(number: int, inner: model.ExecHandle, pump: Pump, near: int | None = None) -> Opened:
    """`near`: where the caller's stdin comes from, if it was open at an earlier daemon."""

    async def wait(call: Call) -> object:
        try:
            async with asyncio.timeout(call.seconds):
                return await inner.wait()
        except TimeoutError:  # with its number it is one at the caller's, too
            raise TimeoutError(errno.ETIMEDOUT, f"the command still runs after {call.seconds:g} s") from None

    methods: dict[str, Method] = {"wait": wait, "kill": lambda _: inner.kill()}
    ends: dict[str, int] = {}
    is_taken_up = getattr(inner, "taken_up", False)
    streams: list[Input | Output] = []
    if inner.stdin is not None:
        if near is None:
            ends["stdin"], near = _ends(reads=False)
        else:
            os.set_blocking(near, False)
        input = Input(inner.stdin, near, pump)
        streams.append(input)
        methods["stdin.close"], methods["stdin.abort"] = input.close, input.abort
    elif is_taken_up:
        # The earlier daemon has closed it, and could not say so.
        methods["stdin.close"] = methods["stdin.abort"] = _over
        close_all(() if near is None else (near,))
    for name, reader in (("stdout", inner.stdout), ("stderr", inner.stderr)):
        if reader is not None:
            ends[name], near = _ends(reads=True)
            output = Output(reader, near, pump, inner.id, waits=is_taken_up)
            streams.append(output)
            methods[f"{name}.end"] = output.end
            if is_taken_up:
                methods[f"{name}.from"] = output.begin

    async def signalled(call: Call) -> None:
        await inner.signal(signal.SIGTERM if call.number is None else call.number)

    async def resize(call: Call) -> None:
        if call.size is None:
            raise InvalidArgumentError("a terminal's new size is missing")
        await inner.resize(call.size)

    async def stop() -> None:
        for stream in streams:
            await stream.stop()

    async def let_go() -> None:
        await stop()
        await inner.aclose()

    async def leave() -> None:
        await stop()
        await getattr(inner, "leave", inner.aclose)()

    methods |= {"signal": signalled, "resize": resize}
    reply = HandleReply(handle=number, streams=tuple(ends), id=inner.id, pid=inner.pid)
    return Opened(reply, let_go, methods, tuple(ends.values()), leave)


async def _over(_: Call) -> None: ...


_READS = (model.ReadFile, model.DownloadTree, model.ReadOutput, model.GetArtifact, model.StreamAudit)
OPENERS: Mapping[type[model.Action[Any]], Callable[[int, Any, Pump], Opened]] = {
    **dict.fromkeys((model.StartExec, model.AttachExec), open_exec),
    **dict.fromkeys(_READS, open_reader),
    **dict.fromkeys((model.WriteFile, model.UploadTree), open_writer),
    model.ConnectPort: open_stream,
    model.WatchFiles: open_watch,
    model.PromoteMount: open_promotion,
    **dict.fromkeys((model.PushBranch, model.OpenPullRequest), open_publication),
}
"""The openers of the handles of results, by action."""


def _ends(*, reads: bool) -> tuple[int, int]:
    """Return the end that the client reads or writes, and ours, which doesn't block."""
    reading, writing = pipe()
    far, near = (reading, writing) if reads else (writing, reading)
    os.set_blocking(near, False)
    return far, near


def pipe() -> tuple[int, int]:
    """Return ends to read and to write, with as much room as this user may still have (pipe(7))."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # /proc/sys/fs/pipe-user-pages-soft: the usual 64 KiB do as well
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return reading, writing
