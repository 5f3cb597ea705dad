"""The output of a background command, from its start, and what follows, until it has ended; or its end alone."""

from __future__ import annotations

import contextlib
import os
import stat

from . import _requests as requests
from ._config import AgentConfig
from ._connection import Channel, Handler
from ._exec import Exec, ExecFollower, Execs, log_paths
from ._faults import Fault
from ._frames import CHUNK, STDERR, STDOUT, Json
from ._kernel import inotify_add_watch, inotify_init
from ._loop import IN, Loop, Timer

_IN_MODIFY = 0x2
_GLANCE_SECONDS = 0.1


def attach(execs: Execs, loop: Loop, config: AgentConfig, channel: Channel, request: Json) -> Handler:
    run = execs.find(request)
    if not run.background:
        raise Fault("not_found", f"the command {run.id} is not a background one")
    return AttachHandler(execs, loop, config, channel, run, silent=requests.flag(request, "silent"))


def output(execs: Execs, loop: Loop, config: AgentConfig, channel: Channel, request: Json) -> Handler:
    """What a background command has printed on one stream until now."""
    run = execs.find(request)
    if not run.background:
        raise Fault("not_found", f"the command {run.id} is not a background one")
    stream = requests.number(request, "stream", low=STDOUT, high=STDERR)
    return OutputHandler(loop, channel, _Log(log_paths(config, run.id)[stream - STDOUT]), run.pid)


class OutputHandler(Handler):
    def __init__(self, loop: Loop, channel: Channel, log: _Log, pid: int) -> None:
        self._loop, self._channel, self._log = loop, channel, log
        log.stop_at_present_size()
        channel.reply({"pid": pid})
        loop.soon(self.writable)

    def writable(self) -> None:
        room = min(self._channel.room(STDOUT), CHUNK)
        if self._log.fd < 0 or not room:
            return
        data = self._log.read(room)
        if data:
            self._channel.send_data(STDOUT, data)
            self._loop.soon(self.writable)
        else:
            self._log.close()
            self._channel.send_eof(STDOUT)
            self._channel.end()

    def close(self) -> None:
        self._log.close()
        self._channel.end()


class AttachHandler(Handler, ExecFollower):
    """`silent`: nothing of the output is told, so that the end does not wait for who does not read."""

    def __init__(
        self, execs: Execs, loop: Loop, config: AgentConfig, channel: Channel, run: Exec, *, silent: bool
    ) -> None:
        self._execs = execs
        self._loop = loop
        self._channel = channel
        self._run = run
        self._logs: dict[int, _Log] = {}
        self._timer: Timer | None = None
        self._notifier = -1
        paths = log_paths(config, run.id)
        try:
            if not silent:
                for stream, path in zip((STDOUT, STDERR), paths, strict=True):
                    self._logs[stream] = _Log(path)
                self._watch(paths)
        except BaseException:
            self._release()
            raise
        run.followers.append(self)
        channel.reply({"pid": run.pid})
        loop.soon(self.writable)

    def control(self, body: Json) -> None:
        if body.get("order") == "signal":
            with contextlib.suppress(Fault, OSError):
                self._execs.send_signal(self._run, requests.number(body, "signal", low=1, high=64))

    def writable(self) -> None:
        for stream, log in self._logs.items():
            self._send(stream, log)
        if self._run.status is not None and all(log.fd < 0 for log in self._logs.values()) and not self._channel.ended:
            self._channel.conclude(self._run.status)
            self._release()

    def exec_ended(self) -> None:
        for log in self._logs.values():
            log.stop_at_present_size()
        self._loop.soon(self.writable)

    def close(self) -> None:
        self._channel.end()
        self._release()

    def _send(self, stream: int, log: _Log) -> None:
        """One chunk; the next in the next round, so that a long log does not keep others waiting."""
        room = min(self._channel.room(stream), CHUNK)
        if log.fd < 0 or not room:
            return
        if log.end is None and self._run.status is not None:
            log.stop_at_present_size()
        data = log.read(room)
        if data:
            self._channel.send_data(stream, data)
            self._loop.soon(self.writable)
        elif log.end is not None:
            log.close()
            self._channel.send_eof(stream)

    def _watch(self, paths: tuple[bytes, bytes]) -> None:
        try:
            self._notifier = inotify_init()
            for path in paths:
                inotify_add_watch(self._notifier, path, _IN_MODIFY)
        except OSError:  # no such thing here, or too many of them: look now and then
            self._glance()
            return
        self._loop.watch(self._notifier, IN, self._noticed)

    def _noticed(self, events: int) -> None:
        os.read(self._notifier, 65536)
        self.writable()

    def _glance(self) -> None:
        self._timer = self._loop.after(_GLANCE_SECONDS, self._glance)
        self._loop.soon(self.writable)

    def _release(self) -> None:
        if self in self._run.followers:
            self._run.followers.remove(self)
        for log in self._logs.values():
            log.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._notifier >= 0:
            self._loop.unwatch(self._notifier)
            os.close(self._notifier)
            self._notifier = -1


class _Log:
    """A file in a directory that the sandbox's user may write: it may have become anything."""

    def __init__(self, path: bytes) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        self.end: int | None = None
        self._position = 0
        if not stat.S_ISREG(os.fstat(self.fd).st_mode):
            self.close()
            raise Fault("file", "the kept output is not a file any more", name="EINVAL")

    def stop_at_present_size(self) -> None:
        if self.fd >= 0 and self.end is None:
            self.end = os.fstat(self.fd).st_size

    def read(self, size: int) -> bytes:
        if self.end is not None:
            size = min(size, max(self.end - self._position, 0))
        data = os.pread(self.fd, size, self._position)
        self._position += len(data)
        return data

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
