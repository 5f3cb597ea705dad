"""The transport that asks a service in this process. The service's door is still the only door."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paddock import model
from paddock.client._bridge import LoopThread
from paddock.client._home import Home, ending, letting_go
from paddock.client._lease import Lease
from paddock.model import (
    Action,
    AttachExec,
    ConnectPort,
    DownloadTree,
    ExecId,
    ExitStatus,
    FileChange,
    FileInfo,
    GetArtifact,
    KillSandbox,
    PtySize,
    ReadFile,
    ReadOutput,
    StartExec,
    StreamAudit,
    UploadTree,
    WatchFiles,
    WriteFile,
)


class AsyncLocalTransport:
    """`home` is asked at every call, so that a forked child gets a service of its own."""

    def __init__(self, home: Callable[[], Home]) -> None:
        self._home = home

    async def perform(self, action: Action[Any]) -> Any:
        home = self._home()
        result = await home.loop.arun(
            home.door.perform,
            action,
            home.principal,
            finish=isinstance(action, KillSandbox),
            discard=lambda late: home.undo(action, late),
        )
        match action:
            case StartExec(background=background):
                return _Exec(home.loop, result, kills=not background)
            case AttachExec():
                return _Exec(home.loop, result, kills=False)
            case ReadFile() | DownloadTree() | ReadOutput() | GetArtifact() | StreamAudit():
                return _Reader(home.loop, result)
            case WriteFile() | UploadTree():
                return _Writer(home.loop, result)
            case ConnectPort():
                return _Stream(home.loop, result)
            case WatchFiles():
                return _Changes(home.loop, result)
            case _:
                return result

    async def aclose(self) -> None:
        """Nothing: the service is this process's, not this transport's."""


class _Reader:
    def __init__(self, loop: LoopThread, there: model.ByteReader, lease: Lease | None = None) -> None:
        self._loop = loop
        self._there = there
        self._lease = lease

    async def read(self, size: int = 65536) -> bytes:
        return await self._loop.arun(self._there.read, size)

    async def aclose(self) -> None:
        await self._loop.arun(ending, self._there, finish=True)


class _Writer:
    def __init__(self, loop: LoopThread, there: model.ByteWriter, lease: Lease | None = None) -> None:
        self._loop = loop
        self._there = there
        self._lease = lease

    async def write(self, data: bytes) -> None:
        await self._loop.arun(self._there.write, data)

    async def aclose(self) -> FileInfo | None:
        return await self._loop.arun(ending, self._there)

    async def abort(self) -> None:
        await self._loop.arun(letting_go, self._there, finish=True)


class _Stream(_Reader, _Writer):
    def __init__(self, loop: LoopThread, there: model.ByteStream) -> None:
        self._loop = loop
        self._there = there  # pyright: ignore[reportIncompatibleVariableOverride]

    async def write_eof(self) -> None:
        await self._loop.arun(self._there.write_eof)


class _Changes:
    def __init__(self, loop: LoopThread, there: model.ChangeStream) -> None:
        self._loop = loop
        self._there = there

    async def next(self) -> tuple[FileChange, ...]:
        return await self._loop.arun(self._there.next)

    async def aclose(self) -> None:
        await self._loop.arun(ending, self._there, finish=True)


class _Exec:
    """`kills`: to let go of the command is its end."""

    def __init__(self, loop: LoopThread, there: model.ExecHandle, *, kills: bool) -> None:
        self._loop = loop
        self._there = there
        self._lease = lease = Lease(loop, there, warn=kills)
        self.id: ExecId = there.id
        self.pid: int = there.pid
        self.stdin = _Writer(loop, there.stdin, lease) if there.stdin is not None else None
        self.stdout = _Reader(loop, there.stdout, lease) if there.stdout is not None else None
        self.stderr = _Reader(loop, there.stderr, lease) if there.stderr is not None else None

    async def wait(self) -> ExitStatus:
        status = await self._loop.arun(self._there.wait)
        self._lease.over()
        return status

    async def signal(self, number: int) -> None:
        await self._loop.arun(self._there.signal, number)

    async def kill(self) -> None:
        await self._loop.arun(self._there.kill, finish=True)

    async def resize(self, size: PtySize) -> None:
        await self._loop.arun(self._there.resize, size)

    async def aclose(self) -> None:
        self._lease.end()
        await self._loop.arun(ending, self._there, finish=True)
