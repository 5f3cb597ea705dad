"""Work that may take long or go wrong, such as somebody's regular expression, in a forked process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import NamedTuple

from ._connection import Channel, Handler
from ._faults import Fault
from ._frames import STDIN, STDOUT, Json, dump_json, parse_json
from ._kernel import set_parent_death_signal
from ._loop import Loop
from ._pumps import Sink, Source

_MAX_RESULT = 32 * 1024


class Streams(NamedTuple):
    """What a worker reads and writes; -1 where it has no such stream."""

    input: int
    output: int


Work = Callable[[Streams], Json]


class Workers:
    """All workers of one agent."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._running: dict[int, WorkerHandler] = {}

    def start(
        self,
        channel: Channel,
        work: Work,
        *,
        reads: bool = False,
        writes: bool = False,
        descriptors: list[int] | None = None,
    ) -> Handler:
        """Answers the request and starts the work. A descriptor of the host's stands in for the one stream there is."""
        given = bool(descriptors)
        if descriptors and (len(descriptors) != 1 or reads == writes):
            raise Fault("invalid_argument", "the wrong number of descriptors")
        made: list[int] = []

        def pipe() -> tuple[int, int]:
            made.extend(os.pipe2(os.O_CLOEXEC))
            return made[-2], made[-1]

        result, result_end = pipe()
        inner = [result_end]
        input = output = near_input = near_output = -1
        try:
            if reads:
                input, near_input = (descriptors or [-1])[0], -1
                if not given:
                    input, near_input = pipe()
                    inner.append(input)
            if writes:
                output, near_output = (descriptors or [-1])[0], -1
                if not given:
                    near_output, output = pipe()
                    inner.append(output)
            pid = _fork(work, Streams(input, output), result_end)
        except BaseException:
            for fd in made:
                os.close(fd)
            raise
        for fd in inner:
            os.close(fd)
        channel.reply({})
        handler = WorkerHandler(self._loop, channel, pid, result, near_input, near_output, reads=reads)
        self._running[pid] = handler
        return handler

    def died(self, pid: int) -> None:
        handler = self._running.pop(pid, None)
        if handler is not None:
            handler.died()

    def stopped(self, pid: int) -> None:
        """Commands may stop what has their uid; whoever asked for the work would wait for ever."""
        if pid in self._running:
            os.kill(pid, signal.SIGCONT)


class WorkerHandler(Handler):
    def __init__(
        self, loop: Loop, channel: Channel, pid: int, result: int, input: int, output: int, *, reads: bool
    ) -> None:
        self._reads = reads
        self._channel = channel
        self._pid = pid
        self._result = result
        self._dead = False
        self._sink = Sink(loop, channel, input) if input >= 0 else None
        self._source = Source(loop, channel, STDOUT, output, self._source_finished) if output >= 0 else None

    def data(self, stream: int, data: bytes) -> None:
        if self._sink is None or stream != STDIN:
            super().data(stream, data)
        else:
            self._sink.data(data)

    def eof(self, stream: int) -> None:
        if stream != STDIN or not self._reads:
            super().eof(stream)
        elif self._sink is not None:  # else the end of the host's pipe has said it
            self._sink.eof()

    def writable(self) -> None:
        if self._source is not None:
            self._source.resume()

    def close(self) -> None:
        """The channel ends when the worker is gone."""
        if self._source is not None:
            self._source.close()
        if not self._dead:
            os.kill(self._pid, signal.SIGKILL)

    def died(self) -> None:
        self._dead = True
        if self._sink is not None:
            self._sink.close()
        if self._source is None or self._source.done:
            self._tell()

    def _source_finished(self, error: OSError | None) -> None:
        if self._dead:
            self._tell()

    def _tell(self) -> None:
        report = os.read(self._result, _MAX_RESULT)  # all of it: it fits into a pipe
        os.close(self._result)
        if report[:1] == b"+":
            self._channel.conclude(parse_json(report[1:]))
        elif report[:1] == b"-":
            body = parse_json(report[1:])
            self._channel.end(Fault(body["code"], body["message"], name=body.get("errno")))
        else:
            self._channel.end(Fault("sandbox", "the work was ended from outside: killed, or out of memory"))


def _fork(work: Work, streams: Streams, result: int) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        set_parent_death_signal(signal.SIGKILL)
        if os.getppid() == parent:
            _become_worker()
            # Other descriptors must go: a copy of some command's stdin would keep it from ever ending.
            keep = sorted(fd for fd in {*(streams.input, streams.output), result} if fd > 2)
            low = 3
            for fd in keep:
                os.closerange(low, fd)
                low = fd + 1
            os.closerange(low, 1 << 30)
            for fd in keep:
                os.set_blocking(fd, True)
            os.write(result, _perform(work, streams))
    finally:
        os._exit(0)


def _become_worker() -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        os.setsid()


def _perform(work: Work, streams: Streams) -> bytes:
    try:
        report = b"+" + dump_json(work(streams))
    except BaseException as error:
        report = b"-" + dump_json(Fault.of(error).body())
    return report if len(report) <= _MAX_RESULT else b"-" + dump_json(Fault("sandbox", "too large a result").body())
