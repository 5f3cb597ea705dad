"""A door with real processes and real files behind it, and no walls: what the client's own tests talk to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from paddock.client import AsyncDaemonTransport, DaemonTransport
from paddock.client import Session as ClientSession
from paddock.daemon.main._listener import SOCKET, Listener
from paddock.daemon.main._recent_requests import RecentRequests
from paddock.daemon.main._requests import Requests
from paddock.daemon.main._sessions import Session
from paddock.errors import (
    FileError,
    InvalidArgumentError,
    NotFoundError,
    ProgramNotExecutableError,
    ProgramNotFoundError,
)
from paddock.linux import local_sockets
from paddock.model import (
    Action,
    AuditReport,
    Check,
    CreateSandbox,
    Diagnose,
    Diagnosis,
    DownloadTree,
    ExecId,
    ExecResult,
    ExitStatus,
    FileInfo,
    FileKind,
    ForkSandbox,
    GetSandbox,
    IdPrefix,
    KillSandbox,
    Level,
    LevelReport,
    ListSandboxes,
    Output,
    Principal,
    ReadFile,
    RunExec,
    Sandbox,
    SandboxId,
    StartExec,
    State,
    StatFile,
    UploadTree,
    VerifyAudit,
    WriteFile,
    codec,
    mint,
)
from paddock.wire import PROTOCOL


class FakeDoor:
    """`performed` holds every action that came, `cancelled` those whose caller left, `open` the handles not closed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.performed: list[Action[Any]] = []
        self.cancelled: list[Action[Any]] = []
        self.open: set[object] = set()
        self.sandboxes: dict[str, Sandbox] = {}
        self.holds_create = self.holds_answers = False
        self.jail = "weak"
        self.audit = AuditReport(ok=True, segments=1, records=2, head="abc")
        self.archive = b""
        self.uploaded = b""

    async def perform(self, action: Action[Any], principal: Principal) -> Any:
        self.performed.append(action)
        try:
            result = await self._effect(action, principal)
            while self.holds_answers:  # noqa: ASYNC110 - a test of another thread clears it
                await asyncio.sleep(0.002)
            return result
        except FileNotFoundError as error:
            raise ProgramNotFoundError(str(error), errno="ENOENT") from None
        except PermissionError as error:
            raise ProgramNotExecutableError(str(error), errno="EACCES") from None
        except asyncio.CancelledError:
            self.cancelled.append(action)
            raise

    async def aclose(self) -> None: ...

    async def _effect(self, action: Action[Any], principal: Principal) -> Any:
        match action:
            case CreateSandbox(spec=spec):
                now = time.time()
                info = Sandbox(
                    id=SandboxId(mint(IdPrefix.SANDBOX)),
                    spec=spec,
                    state=State.RUNNING,
                    level=Level.PROCESS,
                    backend="fake",
                    template=spec.template,
                    created_at=now,
                    expires_at=now + spec.ttl_seconds,
                    owner=principal.id,
                )
                self.sandboxes[info.id] = info
                if self.holds_create:  # too far to turn back: it comes although its caller left, and when he has
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.Event().wait()
                    self.holds_create = False
                return info
            case ForkSandbox(sandbox=name, count=count):
                spec = self._find(name).spec
                made = [await self._effect(CreateSandbox(spec=spec), principal) for _ in range(count)]
                return tuple(made)
            case GetSandbox(sandbox=name):
                return self._find(name)
            case ListSandboxes():
                return tuple(self.sandboxes.values())
            case Diagnose():
                checks = (
                    Check(area="process", name="isolation", status="weak", detail="none: for tests only"),
                    Check(area="level", name="jail", status="weak", detail="\x1b[31mred\u202e", fix="do it"),
                    Check(area="level", name="microvm", status="missing", detail="no"),
                )
                jail = LevelReport(
                    level="jail", backend="fake", status=self.jail, detail="\x1b[31mred\u202e", fix="do it"
                )
                return Diagnosis(checks=checks, default_level="jail", state_dir=str(self.root), levels=(jail,))
            case VerifyAudit():
                return self.audit
            case KillSandbox(sandbox=name):
                await asyncio.sleep(0)
                info = self._find(name)
                changes = {"state": State.KILLED, "ended_at": time.time()}
                self.sandboxes[info.id] = Sandbox(
                    **{field: getattr(info, field) for field in info.__fields__} | changes
                )
                return self.sandboxes[info.id]
            case RunExec():
                return await self._run(action)
            case StartExec(spec=spec):
                stdin = asyncio.subprocess.PIPE if spec.stdin else asyncio.subprocess.DEVNULL
                child = await self._start(spec.argv, stdin)
                return FakeExec(self, child, action.id)
            case ReadFile(path=path, offset=offset, length=length):
                try:
                    data = (self.root / path).read_bytes()[offset:]
                except FileNotFoundError:
                    raise FileError(f"no {path}", errno="ENOENT") from None
                return FakeReader(self, data if length is None else data[:length])
            case WriteFile(path=path):
                return FakeWriter(self, self.root / path)
            case StatFile(path=path):
                if not (self.root / path).exists():
                    raise FileError(f"no {path}", errno="ENOENT")
                return FileInfo(path=path, kind=FileKind.FILE)
            case UploadTree():
                return FakeWriter(self, None)
            case DownloadTree():
                return FakeReader(self, self.archive)
            case _:
                raise NotImplementedError(action)

    def _find(self, name: str) -> Sandbox:
        for info in self.sandboxes.values():
            if name in (info.id, info.spec.name):
                return info
        raise NotFoundError(f"no sandbox {name!r}")

    async def _start(self, argv: tuple[str, ...], stdin: int) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *argv, cwd=self.root, start_new_session=True, stdin=stdin, stdout=pipe, stderr=pipe
            )
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:  # asyncio hangs if it is cancelled in there
            await FakeExec(self, await starting).aclose()
            raise

    async def _run(self, action: RunExec) -> ExecResult:
        child = await self._start(action.spec.argv, asyncio.subprocess.PIPE)
        try:
            out, err = await child.communicate(action.input)
        except asyncio.CancelledError:
            await FakeExec(self, child).aclose()
            raise
        return ExecResult(
            id=ExecId(action.id or mint(IdPrefix.EXEC)),
            status=_status(child.returncode or 0),
            out=Output(head=out, total_bytes=len(out)),
            err=Output(head=err, total_bytes=len(err)),
        )


class FakeReader:
    def __init__(self, door: FakeDoor, data: bytes) -> None:
        self._door, self._data = door, memoryview(data)
        door.open.add(self)

    async def read(self, size: int = 65536) -> bytes:
        piece, self._data = bytes(self._data[:size]), self._data[size:]
        return piece

    async def aclose(self) -> None:
        self._door.open.discard(self)


class FakeWriter:
    def __init__(self, door: FakeDoor, path: Path | None) -> None:
        self._door, self._path, self._data = door, path, bytearray()
        door.open.add(self)

    async def write(self, data: bytes) -> None:
        self._data += data

    async def aclose(self) -> FileInfo | None:
        self._door.open.discard(self)
        if self._path is None:
            self._door.uploaded = bytes(self._data)
            return None
        self._path.write_bytes(self._data)
        return FileInfo(path=str(self._path), kind=FileKind.FILE, size_bytes=len(self._data))

    async def abort(self) -> None:
        self._door.open.discard(self)


class _Pipe:
    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream

    async def read(self, size: int = 65536) -> bytes:
        return await self._stream.read(size)

    async def aclose(self) -> None: ...


class _Stdin:
    def __init__(self, stream: asyncio.StreamWriter) -> None:
        self._stream = stream

    async def write(self, data: bytes) -> None:
        self._stream.write(data)
        await self._stream.drain()

    async def aclose(self) -> None:
        self._stream.close()

    async def abort(self) -> None:
        self._stream.close()


class FakeExec:
    def __init__(self, door: FakeDoor, child: asyncio.subprocess.Process, id: str | None = None) -> None:
        self._door, self._child = door, child
        self.id = ExecId(id or mint(IdPrefix.EXEC))
        self.pid = child.pid
        assert child.stdout
        assert child.stderr
        self.stdin = _Stdin(child.stdin) if child.stdin else None
        self.stdout = _Pipe(child.stdout)
        self.stderr = _Pipe(child.stderr)
        door.open.add(self)

    async def wait(self) -> ExitStatus:
        return _status(await self._died())

    async def _died(self) -> int:
        # Not Process.wait(): that waits for the ends of pipes, which are never seen where nobody reads.
        while self._child.returncode is None:  # noqa: ASYNC110 - asyncio tells nobody
            await asyncio.sleep(0.002)
        return self._child.returncode

    async def signal(self, number: int) -> None:
        os.killpg(self.pid, number)

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def resize(self, size: object) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        await self.kill()
        await self._died()
        self._child._transport.close()  # pyright: ignore
        self._door.open.discard(self)


def _status(returncode: int) -> ExitStatus:
    return ExitStatus(code=returncode) if returncode >= 0 else ExitStatus(signal=-returncode)


class Served:
    """A door behind the daemon's own listener, on an event loop of its own thread."""

    def __init__(self, door: FakeDoor, state_dir: Path) -> None:
        self.door = door
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._on_loop(self._listen(state_dir))

    def close(self) -> None:
        """Ends every connection, waits for what that undoes, and for what ends with the sessions."""
        self._on_loop(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def hand_over(self, when: Callable[[Listener], object]) -> None:
        """`when` returns while nothing is read, the next daemon listens, and this one leaves."""

        async def leave() -> None:
            old, requests = self._listener, self._requests
            when(old)
            await self._listen(self.door.root)
            old.stop()
            await old.aclose()
            requests.recent = RecentRequests()

        self._on_loop(leave())

    def forget(self) -> None:
        """As if it were the next daemon."""
        self._requests.recent = RecentRequests()

    def _on_loop(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listen(self, state_dir: Path) -> None:
        self._requests = Requests(self.door, Principal("local:test"), control=_control)
        self._listener = Listener(self._requests, greet=_greet, ended=self._ended)
        self._endings: set[asyncio.Task[None]] = set()
        self._listener.listen(state_dir)

    def _ended(self, session: Session) -> None:
        self._endings.add(asyncio.get_running_loop().create_task(self._let_go(session)))

    async def _let_go(self, session: Session) -> None:
        for opened in session.handles.values():
            await opened.let_go()

    async def _stop(self) -> None:
        await self._listener.aclose()
        for session in tuple(self._listener.sessions.values()):
            session.end()
        if self._endings:
            await asyncio.wait(self._endings)


def _greet(hello: codec.Hello) -> codec.Welcome:
    return codec.Welcome(protocol=PROTOCOL, version="test", instance="test", pid=os.getpid())


async def _control(what: str, session: Session) -> None:
    raise InvalidArgumentError(what)


class Rig:
    """A door, what serves it, and both transports to it."""

    def __init__(self, root: Path) -> None:
        self.door = FakeDoor(root)
        self.served = Served(self.door, root)
        self.session = ClientSession(root)
        self.transport = DaemonTransport(self.session)
        self.async_transport = AsyncDaemonTransport(self.session)

    def connect(self) -> socket.socket:
        """A raw connection that does not block."""
        peer = local_sockets.connect(self.door.root, SOCKET)
        assert peer is not None
        return peer

    def close(self) -> None:
        self.session.close()
        self.served.close()
