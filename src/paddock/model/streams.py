"""Handles: what `perform` returns where bytes flow. They bypass the door; their limits, deadline and record do not.

The shapes are those of the asynchronous side; the synchronous client wraps them.
"""

from __future__ import annotations

from typing import Protocol

from paddock.model.exec import ExitStatus, PtySize
from paddock.model.files import FileChange, FileInfo
from paddock.model.ids import ExecId


class ByteReader(Protocol):
    async def read(self, size: int = 65536) -> bytes:
        """At most `size` bytes as soon as any are there; b"" at the end. Unread bytes block the writer."""
        ...

    async def aclose(self) -> None: ...


class ByteWriter(Protocol):
    async def write(self, data: bytes) -> None:
        """Wait until all of it was taken. BrokenPipeError if the other side closed."""
        ...

    async def aclose(self) -> FileInfo | None:
        """End the stream. For a file: returns when it is in place, with what it became."""
        ...

    async def abort(self) -> None:
        """Give up: a file that was being written beside its place is dropped. Nothing after `aclose`."""
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
        """Its process id inside the sandbox; 0 if it was killed before that could be told."""
        ...

    @property
    def stdin(self) -> ByteWriter | None: ...
    @property
    def stdout(self) -> ByteReader | None: ...
    @property
    def stderr(self) -> ByteReader | None: ...
    async def wait(self) -> ExitStatus: ...
    async def signal(self, number: int) -> None:
        """To the command and its process group."""
        ...

    async def kill(self) -> None:
        """SIGKILL to everything that the command started, double-forked daemons included."""
        ...

    async def resize(self, size: PtySize) -> None: ...
    async def aclose(self) -> None:
        """Lets go: a foreground command is killed, a background one lives on."""
        ...


class HeldExecHandle(ExecHandle, Protocol):
    """A command in the hands of the caller's program."""

    async def wait(self, seconds: float | None = None) -> ExitStatus:
        """Raise TimeoutError if the command still runs after so many seconds."""
        ...


class ChangeStream(Protocol):
    async def next(self) -> tuple[FileChange, ...]:
        """Return the next changes, at least one; empty when the watch has ended."""
        ...

    async def aclose(self) -> None: ...
