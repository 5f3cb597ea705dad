"""The door inside a sandbox: through it a program in there makes children of that sandbox, and nothing else.

It is a unix socket; whoever in there connects is put through to here, and speaks in frames: four bytes of length,
big-endian, then JSON. All of it is an attacker's. What it asks is performed like everything else, by a principal of its
own, which the policy knows.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from importlib.resources import files
from typing import TypeAlias

import msgspec

from paddock.backends._base import Instance
from paddock.errors import GuestLost, InvalidArgument, PaddockError, SandboxDied
from paddock.model import (
    ByteStream,
    CreateSandbox,
    ExecSpec,
    ForkSandbox,
    KillSandbox,
    Limits,
    ListSandboxes,
    PauseSandbox,
    Principal,
    PromoteChild,
    ReadFile,
    ResumeSandbox,
    RunExec,
    Sandbox,
    SandboxSpec,
    WriteFile,
    nested_principal,
)

from ._allotment import Allotment, share
from ._context import Component, Context
from ._held import Held
from ._store import Row

FOLDER = "/tmp/.paddock"  # noqa: S108 - inside, where nothing but its own programs can get
DOOR = f"{FOLDER}/door"
MOST_CALLERS = 16
# What all callers of one sandbox may have the service hold at a time is the product of these two.
MOST_FRAME_BYTES = 6 << 20
MOST_FILE_BYTES = 4 << 20
_CAPTURE_BYTES = 1 << 20
_WAITING = 2
_PAUSE_SECONDS = 0.2


class _Create(msgspec.Struct, tag="create", forbid_unknown_fields=True, kw_only=True):
    name: str | None = None
    ttl_seconds: float | None = None
    limits: dict[str, float] = {}
    env: dict[str, str] = {}


class _Fork(msgspec.Struct, tag="fork", forbid_unknown_fields=True, kw_only=True):
    count: int = 1


class _List(msgspec.Struct, tag="list", forbid_unknown_fields=True, kw_only=True):
    pass


class _Kill(msgspec.Struct, tag="kill", forbid_unknown_fields=True, kw_only=True):
    sandbox: str


class _Pause(msgspec.Struct, tag="pause", forbid_unknown_fields=True, kw_only=True):
    sandbox: str


class _Resume(msgspec.Struct, tag="resume", forbid_unknown_fields=True, kw_only=True):
    sandbox: str


class _Exec(msgspec.Struct, tag="exec", forbid_unknown_fields=True, kw_only=True):
    sandbox: str
    argv: tuple[str, ...]
    cwd: str | None = None
    env: dict[str, str] = {}
    user: str | None = None
    timeout_seconds: float | None = None
    input: bytes | None = None


class _Read(msgspec.Struct, tag="read", forbid_unknown_fields=True, kw_only=True):
    sandbox: str
    path: str


class _Write(msgspec.Struct, tag="write", forbid_unknown_fields=True, kw_only=True):
    sandbox: str
    path: str
    data: bytes


class _Promote(msgspec.Struct, tag="promote", forbid_unknown_fields=True, kw_only=True):
    child: str
    path: str = "/workspace"


_Request: TypeAlias = _Create | _Fork | _List | _Kill | _Pause | _Resume | _Exec | _Read | _Write | _Promote
_decode = msgspec.json.Decoder(_Request).decode


class Nested(Component):
    def __init__(self, context: Context, allotment: Allotment) -> None:
        super().__init__(context)
        self._allotment = allotment

    @staticmethod
    def environment(spec: SandboxSpec) -> dict[str, str]:
        """What a program inside needs to find the door and the module that knocks."""
        given = spec.env.get("PYTHONPATH")
        return {"PADDOCK_DOOR": DOOR, **spec.env, "PYTHONPATH": f"{FOLDER}:{given}" if given else FOLDER}

    @staticmethod
    async def furnish(instance: Instance) -> None:
        """Lays the module into a sandbox that nobody has used yet."""
        text = files("paddock.client").joinpath("_inside.py").read_bytes()
        writer = await instance.file(WriteFile(sandbox=instance.id, path=f"{FOLDER}/paddock.py", mode=0o644))
        await writer.write(text)
        await writer.aclose()

    async def serve(self, held: Held) -> None:
        """Until the sandbox has ended, or the task is cancelled."""
        room = asyncio.Semaphore(MOST_CALLERS)
        async with asyncio.TaskGroup() as callers:
            for _ in range(_WAITING):
                callers.create_task(self._attend(held, room, callers))

    async def _attend(self, held: Held, room: asyncio.Semaphore, callers: asyncio.TaskGroup) -> None:
        while True:
            await room.acquire()
            try:
                stream = await held.instance.accept(DOOR)
            except SandboxDied:
                return
            except (GuestLost, OSError):  # its agent was killed, and there will be another one; or we are short
                room.release()
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            except PaddockError:
                return  # it has put something else where the door belongs: then it has none
            caller = callers.create_task(self._talk(stream, held))
            caller.add_done_callback(lambda _: room.release())

    async def _talk(self, stream: ByteStream, held: Held) -> None:
        """One caller's requests, one after the other."""
        principal = nested_principal(held.id)
        async with aclosing(stream):
            try:
                while (frame := await _receive(stream)) is not None:
                    await _send(stream, await self._answer(frame, principal))
            except (PaddockError, OSError):
                return  # the caller has gone, or its sandbox

    async def _answer(self, frame: bytes, principal: Principal) -> bytes:
        try:
            return msgspec.json.encode({"ok": await self._do(_decode(frame), principal)})
        except msgspec.MsgspecError as error:
            return _refusal(InvalidArgument(f"not a request: {error}"))
        except PaddockError as error:
            return _refusal(error)

    async def _do(self, request: _Request, principal: Principal) -> object:
        outer = self._allotment.outer(principal)
        assert outer is not None
        match request:
            case _Create():
                ttl = self._allotment.seconds_left(outer) if request.ttl_seconds is None else request.ttl_seconds
                limits = self._limits(outer, request.limits)
                asked = SandboxSpec(name=request.name, ttl_seconds=ttl, limits=limits, env=request.env)
                return _shown(await self._perform(CreateSandbox(spec=self._allotment.spec(outer, asked)), principal))
            case _Fork():
                children = await self._perform(ForkSandbox(sandbox=outer.id, count=request.count), principal)
                return [_shown(child) for child in children]
            case _List():
                return [_shown(child) for child in await self._perform(ListSandboxes(), principal)]
            case _Kill():
                return _shown(await self._perform(KillSandbox(sandbox=request.sandbox), principal))
            case _Pause():
                return _shown(await self._perform(PauseSandbox(sandbox=request.sandbox), principal))
            case _Resume():
                return _shown(await self._perform(ResumeSandbox(sandbox=request.sandbox), principal))
            case _Exec():
                return await self._exec(request, principal)
            case _Read():
                return await self._read(request, principal)
            case _Write():
                writer = await self._perform(WriteFile(sandbox=request.sandbox, path=request.path), principal)
                try:
                    await writer.write(request.data)
                except BaseException:
                    await writer.abort()
                    raise
                await writer.aclose()
                return None
            case _Promote():
                action = PromoteChild(sandbox=outer.id, child=request.child, path=request.path)
                return await self._perform(action, principal)

    @staticmethod
    def _limits(outer: Row, asked: dict[str, float]) -> Limits:
        """What each may have, where nothing is asked."""
        try:
            return msgspec.convert(vars(share(outer.sandbox.spec)) | asked, Limits)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"limits: {error}", field="limits") from None

    async def _exec(self, request: _Exec, principal: Principal) -> object:
        spec = ExecSpec(
            argv=request.argv,
            cwd=request.cwd,
            env=request.env,
            user=request.user,
            timeout_seconds=request.timeout_seconds,
        )
        action = RunExec(sandbox=request.sandbox, spec=spec, input=request.input, capture_bytes=_CAPTURE_BYTES)
        result = await self._perform(action, principal)
        return {
            "exit_code": result.exit_code,
            "signal": result.signal,
            "limit": result.limit,
            "duration_seconds": result.duration_seconds,
            "stdout": result.stdout,
            "stderr": result.stderr,
        }

    async def _read(self, request: _Read, principal: Principal) -> bytes:
        action = ReadFile(sandbox=request.sandbox, path=request.path, length=MOST_FILE_BYTES + 1)
        reader = await self._perform(action, principal)
        parts: list[bytes] = []
        async with aclosing(reader):
            while data := await reader.read():
                parts.append(data)
        if sum(map(len, parts)) > MOST_FILE_BYTES:
            raise InvalidArgument(
                f"{request.path} has more than {MOST_FILE_BYTES >> 20} MiB, which is the most that one answer holds",
                hint="`promote` moves whole trees",
            )
        return b"".join(parts)


def _shown(child: Sandbox) -> dict[str, object]:
    return {"id": child.id, "name": child.spec.name, "state": child.state, "expires_at": child.expires_at}


def _refusal(error: PaddockError) -> bytes:
    return msgspec.json.encode({"error": {"code": error.code, "message": error.message, "hint": error.hint}})


async def _receive(stream: ByteStream) -> bytes | None:
    """One frame; None at the end, and where what comes is none."""
    head = await _exactly(stream, 4)
    size = 0 if head is None else int.from_bytes(head, "big")
    return None if not 0 < size <= MOST_FRAME_BYTES else await _exactly(stream, size)


async def _exactly(stream: ByteStream, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        data = await stream.read(min(size - len(parts), 1 << 18))
        if not data:
            return None
        parts += data
    return bytes(parts)


async def _send(stream: ByteStream, body: bytes) -> None:
    await stream.write(len(body).to_bytes(4, "big") + body)
