"""Handles: the results of `perform` that carry streams.

Streams bypass the action's checks, but not its limits, deadline and record. These are the daemon's own. A client's are
`AsyncReader`, `AsyncProcess` and so on.
"""

from __future__ import annotations

from typing import Protocol

from paddock.model.exec import ExitStatus, PtySize
from paddock.model.files import FileChange, FileInfo
from paddock.model.ids import ExecId


class ByteReader(Protocol):
    async def read(self, size: int = 65536) -> bytes:
        """Read at most `size` bytes as soon as any are there, or b"" at the end. Unread bytes block the writer."""
        ...

    async def aclose(self) -> None: ...


class ByteWriter(Protocol):
    async def write(self, data: bytes) -> None:
        """Wait until the other side has accepted all of it. Raises BrokenPipeError if it has closed."""
        ...

    async def aclose(self) -> FileInfo | None:
        """End the stream. For a file: wait until the file is in place, and return its properties."""
        ...

    async def abort(self) -> None:
        """Abort the stream. It discards a file that isn't in place yet. Without effect after `aclose`."""
        ...


class ByteStream(ByteReader, ByteWriter, Protocol):
    """Both ways, such as a connection to a port. `write_eof` closes one half."""

    async def write_eof(self) -> None: ...


class ExecHandle(Protocol):
    """A command that runs. Its streams are None where the spec asked for none."""

    @property
    def id(self) -> ExecId: ...
    @property
    def pid(self) -> int:
        """The process id inside the sandbox. It is 0 if the command died before paddock knew it."""
        ...

    @property
    def stdin(self) -> ByteWriter | None: ...
    @property
    def stdout(self) -> ByteReader | None: ...
    @property
    def stderr(self) -> ByteReader | None: ...
    async def wait(self) -> ExitStatus: ...
    async def signal(self, number: int) -> None:
        """Send a signal to the command and its process group."""
        ...

    async def kill(self) -> None:
        """SIGKILL to everything that the command started, double-forked daemons included."""
        ...

    async def resize(self, size: PtySize) -> None: ...
    async def aclose(self) -> None:
        """Release the handle. That kills a foreground command. A background command continues."""
        ...


class ChangeStream(Protocol):
    async def next(self) -> tuple[FileChange, ...]:
        """Return the next changes, at least one, or an empty tuple at the end of the watch."""
        ...

    async def aclose(self) -> None: ...
