"""The seam between the client and paddock: one verb."""

from __future__ import annotations

from typing import Protocol, TypeVar, overload

from paddock.model import (
    Action,
    AttachExec,
    ConnectPort,
    DownloadTree,
    GetArtifact,
    ReadFile,
    ReadOutput,
    StartExec,
    StreamAudit,
    UploadTree,
    WatchFiles,
    WriteFile,
)

from .changes import AsyncChanges
from .connection import AsyncConnection
from .process import AsyncProcess, AsyncReader, AsyncWriter

R = TypeVar("R")


class AsyncTransport(Protocol):
    """Carries an action to paddock and its result back. Errors are those of `paddock.errors`."""

    # Carries an action to paddock and its result back. Raises the errors of `paddock.errors`.
    @overload
    async def perform(self, action: StartExec | AttachExec) -> AsyncProcess: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    async def perform(
        self, action: ReadFile | DownloadTree | ReadOutput | GetArtifact | StreamAudit
    ) -> AsyncReader: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    async def perform(self, action: WriteFile | UploadTree) -> AsyncWriter: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    async def perform(self, action: ConnectPort) -> AsyncConnection: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    async def perform(self, action: WatchFiles) -> AsyncChanges: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    async def perform(self, action: Action[R]) -> R: ...

    async def aclose(self) -> None: ...
