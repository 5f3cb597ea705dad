"""Serve the socket inside a sandbox through which its programs make children of that sandbox, and nothing else.

The guest passes on the bytes of programs that connect to it, and no descriptors. They are frames of `paddock.wire`, and
an attacker's. `nested:<id>`, which the policy knows, performs the actions.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from paddock import model
from paddock.backends.base import Instance
from paddock.daemon.context import Component
from paddock.daemon.store.database import Row, has_ended
from paddock.daemon.tasks import in_thread
from paddock.errors import (
    GuestLostError,
    InternalError,
    InvalidArgumentError,
    InvalidStateError,
    PaddockError,
    PolicyDeniedError,
    ResourceExhaustedError,
    SandboxDiedError,
)
from paddock.model import Limits, Principal, Sandbox, SandboxSpec, Value, codec, died, nested_principal, replace
from paddock.wire import PROTOCOL, Frame, Inbox, Kind, WireError, pack

if TYPE_CHECKING:
    from .instance import RunningSandbox

FOLDER = "/tmp/.paddock"  # noqa: S108 - inside, where nothing but its own programs can get
SOCKET = f"{FOLDER}/socket"
MOST_CALLERS = 16
# The product of these two limits the memory that one sandbox's callers can take.
MOST_FRAME_BYTES = 6 << 20
MOST_FILE_BYTES = 4 << 20
MOST_PARTS = 1 << 16
"""Of one request's JSON, with its escapes: they take the time, not the bytes. A command's arguments have fewer."""
_PAUSE_SECONDS = 0.2
PACKAGE = {
    "__init__.py": "client/_inside.py",
    **{name: name for name in ("wire/__init__.py", "wire/_connection.py", "wire/_frames.py")},
}
"""The files of `paddock` inside, and what they are outside."""
_PASSES = {
    "sandbox.create": "spec name ttl_seconds limits env",
    "sandbox.fork": "sandbox count",
    "sandbox.list": "",
    "sandbox.kill": "sandbox",
    "sandbox.pause": "sandbox",
    "sandbox.resume": "sandbox",
    "sandbox.promote": "sandbox child path",
    "exec.run": "sandbox input spec argv cwd env user timeout_seconds shell",
    "file.read": "sandbox path",
    "file.write": "sandbox path",
}
"""The actions that a policy decides on, and the allowed fields of each and of its spec."""
_SHARED = ("cpus", "memory_mib", "swap_mib", "processes", "disk_mib", "inodes", "tmp_mib")
_log = logging.getLogger("paddock")


class Request(Value, forbid_unknown_fields=True):
    """Hold an OPEN: a caller inside has neither descriptors nor handles."""

    action: model.Action[Any]
    data: bytes = b""
    """What `file.write` writes."""


class Nested(Component):
    """The children of sandboxes. `max_children=N` cuts what a sandbox may have into N equal parts. N children may have
    them beside it."""

    def outer(self, principal: Principal) -> Row | None:
        """Return the sandbox inside which the request was made, if any. Raises SandboxDiedError."""
        if principal.sandbox is None:
            return None
        row = self._store.get(principal.sandbox)
        if row is None:
            raise SandboxDiedError(f"sandbox {principal.sandbox} is gone")
        if has_ended(row):
            raise died(row.sandbox)
        return row

    def of_fork(self, outer: Row, spec: SandboxSpec, count: int) -> SandboxSpec:
        """Return that of a fork. It begins with as much on its disk as the outer one has, so it may hold as much."""
        of = outer.sandbox.spec
        limits = replace(share(of), disk_mib=of.limits.disk_mib, inodes=of.limits.inodes)
        ttl = min(spec.ttl_seconds, self.seconds_left(outer))
        spec = replace(spec, limits=limits, ttl_seconds=ttl, nested=0, persistent=False)
        self.check(outer, spec, count, forked=True)
        return spec

    def seconds_left(self, outer: Row) -> float:
        return max(1.0, outer.deadline - self._clock.boottime())

    def check(self, outer: Row, spec: SandboxSpec, count: int, *, forked: bool = False) -> None:
        """InvalidArgumentError, InvalidStateError, ResourceExhaustedError: no child like that, or none now. The caller
        records the children before anything else runs."""
        most = outer.sandbox.spec.nested
        if not most:
            raise InvalidStateError(
                f"sandbox {outer.id} may have no children", hint="make it with max_children=N", sandbox=outer.id
            )
        part = share(outer.sandbox.spec)
        for name in Limits.__fields__:
            if forked and name in ("disk_mib", "inodes"):
                continue
            if getattr(spec.limits, name) > getattr(part, name):
                raise InvalidArgumentError(
                    f"limits.{name}={getattr(spec.limits, name):.10g} is above {getattr(part, name):.10g}:"
                    f" no more for each of the {most} children that {outer.id} may have",
                    hint="ask for less, or make the outer sandbox with more, or for fewer children",
                    field=f"limits.{name}",
                )
        if spec.ttl_seconds > self.seconds_left(outer) + 1.0:
            raise InvalidArgumentError(f"ttl={spec.ttl_seconds:.10g} is longer than {outer.id} lives", field="ttl")
        living = len(self._store.list(nested_principal(outer.id).id))
        if living + count > most:
            raise ResourceExhaustedError(
                f"sandbox {outer.id} has {living} children, and may have {most}", hint="kill one that is not needed"
            )

    async def serve(self, running: RunningSandbox) -> None:
        """Serve until the sandbox has ended, or the task is cancelled."""
        async with asyncio.TaskGroup() as callers:
            for _ in range(MOST_CALLERS):
                callers.create_task(self._attend(running))

    async def _attend(self, running: RunningSandbox) -> None:
        """One caller after the other."""
        while True:
            try:
                stream = await running.instance.accept(SOCKET)
            except SandboxDiedError:
                return
            except (GuestLostError, OSError):  # its agent was killed, and there will be another one; or we are short
                await asyncio.sleep(_PAUSE_SECONDS)
            except PaddockError:
                return  # it has put something else where the socket belongs: then it has none
            else:
                await self._talk(stream, nested_principal(running.id))

    async def _talk(self, stream: model.ByteStream, principal: Principal) -> None:
        """Answer one request after the other. A silent caller may be paused, and blocks only itself."""
        inbox = Inbox(MOST_FRAME_BYTES)
        async with aclosing(stream):
            try:
                while data := await stream.read(1 << 18):
                    for frame in inbox.feed(data):
                        kind, body = await self._answer(frame, principal)
                        await stream.write(pack(kind, frame.channel, body))
            except (PaddockError, OSError, WireError):
                return  # the caller has gone, or its sandbox, or it doesn't keep the protocol

    async def _answer(self, frame: Frame, principal: Principal) -> tuple[Kind, bytes]:
        if frame.kind is Kind.HELLO:
            return Kind.HELLO, codec.encode({"protocol": PROTOCOL, "sandbox": principal.sandbox})
        if frame.kind is not Kind.OPEN:
            raise WireError(f"{frame.kind.name} from inside")
        try:
            return Kind.REPLY, codec.encode_whole(await self._do(frame.body, principal))
        except Exception as error:
            if not isinstance(error, PaddockError):
                _log.exception("a request of %s failed", principal.id)
            _release(error)
            said = error if isinstance(error, PaddockError) else InternalError("the request failed")
        return Kind.ERROR, codec.encode({"code": said.code, "message": said.message, "hint": said.hint})

    async def _do(self, body: bytes, principal: Principal) -> object:
        outer = self.outer(principal)
        assert outer is not None
        request = admitted(body)
        action = request.action
        if isinstance(action, model.CreateSandbox):
            action = replace(action, spec=self._completed(action.spec, body, outer))
        elif isinstance(action, model.ReadFile):
            action = replace(action, length=MOST_FILE_BYTES + 1)
        result: Any = await self._perform(action, principal)
        if isinstance(action, model.ReadFile):
            return await _read(result, action.path)
        return await _write(result, request.data) if isinstance(action, model.WriteFile) else _seen(result)

    def _completed(self, asked: SandboxSpec, body: bytes, outer: Row) -> SandboxSpec:
        """Complete the spec of a child from its outer sandbox."""
        raw_spec = json.loads(body)["action"].get("spec", {})
        limits = {name: getattr(asked.limits, name) for name in raw_spec.get("limits", ())}
        return replace(
            asked,
            template=outer.sandbox.spec.template,
            level=outer.sandbox.level,
            limits=replace(share(outer.sandbox.spec), **limits),
            ttl_seconds=asked.ttl_seconds if "ttl_seconds" in raw_spec else self.seconds_left(outer),
        )


def _release(error: BaseException | None) -> None:
    """Release the frames that raised it. A channel in a frame may hold the error, and such a cycle keeps megabytes of
    a request until a collection."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def environment(spec: SandboxSpec) -> dict[str, str]:
    """Return what a program inside needs to find the socket and the package."""
    python_path = spec.env.get("PYTHONPATH")
    return {"PADDOCK_SOCKET": SOCKET, **spec.env, "PYTHONPATH": f"{FOLDER}:{python_path}" if python_path else FOLDER}


async def install(instance: Instance) -> None:
    """Install the package in a new sandbox."""
    from importlib.resources import files

    for name, source in PACKAGE.items():
        text = await in_thread(files("paddock").joinpath(source).read_bytes)
        path = f"{FOLDER}/paddock/{name}"
        await _write(await instance.file(model.WriteFile(sandbox=instance.id, path=path, mode=0o644)), text)


def share(spec: SandboxSpec) -> Limits:
    """Return what each of its children may have."""
    of, parts = spec.limits, max(1, spec.nested)
    parted = {name: getattr(of, name) // parts for name in _SHARED}
    return replace(of, **{**parted, "cpus": of.cpus / parts, "tmp_mib": max(1, parted["tmp_mib"])})


def admitted(body: bytes) -> Request:
    """Return a request for the policy. Raises InvalidArgumentError, PolicyDeniedError."""
    if len(body) - len(body.translate(None, b"[{,\\")) > MOST_PARTS:
        raise InvalidArgumentError(f"a request of more than {MOST_PARTS} parts")
    try:
        request = codec.decode(body, Request)
    except codec.Malformed as error:
        raise InvalidArgumentError(f"not a request: {error}") from None
    action = request.action
    if action.TAG not in _PASSES:
        raise PolicyDeniedError(f"{action.TAG} is not for programs inside a sandbox")
    passes, values = _PASSES[action.TAG].split(), (action, getattr(action, "spec", action))
    for value in values:
        for name, default in value.__fields__.items():
            if name not in passes and getattr(value, name) != default:
                raise InvalidArgumentError(f"{action.TAG} takes no {name} inside a sandbox", field=name)
    return request


def _seen(result: object) -> object:
    """Without what says something of the host."""
    if isinstance(result, tuple):
        return tuple(map(_seen, cast("tuple[object, ...]", result)))
    if isinstance(result, Sandbox):
        return replace(result, spec=SandboxSpec(name=result.spec.name, limits=result.spec.limits))
    if isinstance(result, model.ExecResult):
        return replace(result, out=replace(result.out, file=None), err=replace(result.err, file=None))
    return result


async def _read(reader: model.ByteReader, path: str) -> bytes:
    data = bytearray()
    async with aclosing(reader):
        while part := await reader.read():
            data += part
    if len(data) > MOST_FILE_BYTES:
        most = f"{MOST_FILE_BYTES >> 20} MiB, which is the most that one answer holds"
        raise InvalidArgumentError(f"{path} has more than {most}", hint="`promote` moves whole trees")
    return bytes(data)


async def _write(writer: model.ByteWriter, data: bytes) -> None:
    try:
        await writer.write(data)
    except BaseException:
        await writer.abort()
        raise
    await writer.aclose()
