"""Reading and writing one file, chunk by chunk, without a process of its own."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from . import _requests as requests
from ._config import AgentConfig
from ._connection import Channel, Handler
from ._faults import Fault
from ._files import describe, make_parents
from ._frames import STDIN, STDOUT, WINDOW, Json
from ._loop import Loop
from ._paths import locate
from ._pumps import Source
from ._splice import Inflow, Outflow

_SAFE = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a FIFO or a terminal must not hold us up


class ReadHandler(Handler):
    """Into a pipe of the host's, or in frames."""

    def __init__(
        self, loop: Loop, config: AgentConfig, channel: Channel, request: Json, descriptors: list[int]
    ) -> None:
        self._channel = channel
        self._name = requests.path(request, "path", config)
        offset = requests.number(request, "offset", 0)
        length = requests.optional_number(request, "length")
        if len(descriptors) > 1:
            raise Fault("invalid_argument", "the wrong number of descriptors")
        try:
            fd = os.open(locate(self._name, config), os.O_RDONLY | _SAFE)
            try:
                size = _require_file(fd, self._name).st_size
                os.lseek(fd, offset, os.SEEK_SET)
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            raise Fault.of(error, self._name) from None
        channel.reply({"size_bytes": size})
        self._source: Source | Outflow
        if descriptors:
            self._source = Outflow(loop, fd, descriptors.pop(), length, self._finished)
        else:
            self._source = Source(loop, channel, STDOUT, fd, self._finished, poll=False, limit=length)

    def writable(self) -> None:
        if isinstance(self._source, Source):
            self._source.resume()

    def close(self) -> None:
        self._source.close()
        self._channel.end()

    def _finished(self, error: OSError | None) -> None:
        self._channel.end(None if error is None else Fault.of(error, self._name))


class WriteHandler(Handler):
    """Into a new file beside the old one, renamed over it at the end of the stream; or, to append, in place."""

    def __init__(
        self, loop: Loop, config: AgentConfig, channel: Channel, request: Json, descriptors: list[int]
    ) -> None:
        self._channel = channel
        if len(descriptors) > 1:
            raise Fault("invalid_argument", "the wrong number of descriptors")
        self._name = requests.path(request, "path", config)
        self._mode = requests.optional_number(request, "mode", high=0o7777)
        self._append = requests.flag(request, "append")
        self._directory = self._file = -1
        self._temporary: bytes | None = None
        self._ungranted = 0
        self._inflow: Inflow | None = None
        self._committed = False
        # Where a symbolic link leads: it is the file behind it that is meant.
        self._place = os.path.realpath(locate(self._name, config))
        try:
            self._open()
        except OSError as error:
            self._release()
            raise Fault.of(error, self._name) from None
        except BaseException:
            self._release()
            raise
        channel.reply({})
        if descriptors:
            self._inflow = Inflow(loop, descriptors.pop(), self._file, self._flowed)

    def _open(self) -> None:
        make_parents(self._place)
        parent, name = os.path.split(self._place)
        self._directory = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        if self._append:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | _SAFE
            self._file = os.open(name, flags, 0o666, dir_fd=self._directory)
            _require_file(self._file, self._name)
            return
        before = self._before(name)
        temporary = b".paddock-%s" % os.urandom(8).hex().encode()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(temporary, flags, 0o666, dir_fd=self._directory)
        self._temporary = temporary
        if before is not None:
            with contextlib.suppress(PermissionError):  # another's file in a directory of ours: it becomes ours
                if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(self._file, before.st_uid, before.st_gid)
            os.fchmod(self._file, stat.S_IMODE(before.st_mode))

    def _before(self, name: bytes) -> os.stat_result | None:
        try:
            before = os.stat(name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(before.st_mode):
            raise IsADirectoryError(errno.EISDIR, "")
        if not stat.S_ISREG(before.st_mode):
            raise Fault("file", "not a regular file", name="EINVAL")
        return before

    def data(self, stream: int, data: bytes) -> None:
        if stream != STDIN or self._inflow is not None:
            super().data(stream, data)
        if self._file < 0:
            return  # refused already; this was under way
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            self._refuse(error)
            return
        self._ungranted += len(data)
        if self._ungranted >= WINDOW // 2:
            self._channel.grant(STDIN, self._ungranted)
            self._ungranted = 0

    def eof(self, stream: int) -> None:
        """The host has sent everything. Without this word a pipe that closes means that the host has gone."""
        if stream != STDIN or self._committed:
            super().eof(stream)
        self._committed = True
        if self._inflow is None or self._inflow.done:
            self._finish()

    def _flowed(self, error: OSError | None) -> None:
        if error is not None:
            self._refuse(error)
        elif self._committed:
            self._finish()

    def _refuse(self, error: OSError) -> None:
        self._release()
        self._channel.end(Fault.of(error, self._name))

    def _finish(self) -> None:
        try:
            if self._mode is not None:
                os.fchmod(self._file, self._mode)
            name = os.path.basename(self._place)
            if self._temporary is not None:
                os.rename(self._temporary, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
                self._temporary = None
            self._channel.conclude(describe(name, self._name, dir_fd=self._directory))
        except OSError as error:
            self._channel.end(Fault.of(error, self._name))
        finally:
            self._release()

    def close(self) -> None:
        self._release()
        self._channel.end()

    def _release(self) -> None:
        if self._inflow is not None:
            self._inflow.close()
        if self._temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary, dir_fd=self._directory)
            self._temporary = None
        for fd in (self._file, self._directory):
            if fd >= 0:
                os.close(fd)
        self._file = self._directory = -1


def _require_file(fd: int, name: bytes) -> os.stat_result:
    status = os.fstat(fd)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "")
    if not stat.S_ISREG(status.st_mode):
        raise Fault("file", "not a regular file", name="EINVAL")
    return status
