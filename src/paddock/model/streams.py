"""Handles: what `perform` returns where bytes flow. They bypass the door; their limits, deadline and record do not.

The shapes are those of the asynchronous side; the synchronous client wraps them.
"""

from __future__ import annotations

from typing import Protocol

from paddock.model.exec import ExitStatus, PtySize
from paddock.model.files import FileChange, FileInfo
from paddock.model.ids import ExecId
from paddock.model.results import (
    Promotion,
    PromotionPlan,
    Published,
    PullRequest,
    PullRequestPlan,
    PushedBranch,
    PushPlan,
)


class ByteReader(Protocol):
    async def read(self, size: int = 65536) -> bytes:
        """At most `size` bytes as soon as any are there; b"" at the end. Unread bytes block the writer."""
        ...

    async def aclose(self) -> None: ...


class ByteWriter(Protocol):
    async def write(self, data: bytes) -> None:
        """Returns when all of it was taken. BrokenPipeError if the other side closed."""
        ...

    async def aclose(self) -> FileInfo | None:
        """Ends the stream. For a file: returns when it is in place, with what it became."""
        ...

    async def abort(self) -> None:
        """Gives up: a file that was being written beside its place is dropped. Nothing after `aclose`."""
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


class PromotionHandle(Protocol):
    """A promotion that its caller carries out: he writes what `plan` says from the directory `layer`, and notes each
    step in the file `journal`. Both descriptors are the handle's."""

    @property
    def plan(self) -> PromotionPlan: ...
    @property
    def layer(self) -> int: ...
    @property
    def journal(self) -> int: ...
    async def finish(self) -> Promotion:
        """What was taken over. PlatformError: not all of the plan is in the journal."""
        ...

    async def aclose(self) -> None:
        """The caller gave up, or is gone; what he noted is remembered."""
        ...


class PublicationHandle(Protocol):
    """A push or a pull request that its caller carries out, with his credentials. Without a plan nothing is to do."""

    @property
    def push(self) -> PushPlan | None: ...
    @property
    def pull_request(self) -> PullRequestPlan | None: ...
    async def finish(self, published: Published) -> PushedBranch | PullRequest:
        """Record what the caller says of it. Raises the error that he met."""
        ...

    async def aclose(self) -> None:
        """The caller gave up, or is gone: what became of it is unknown."""
        ...


class ChangeStream(Protocol):
    async def next(self) -> tuple[FileChange, ...]:
        """The next changes, at least one; empty when the watch has ended."""
        ...

    async def aclose(self) -> None: ...
