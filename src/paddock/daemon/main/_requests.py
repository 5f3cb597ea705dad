"""One request of a client: decode it, perform it, answer it; undo what came after its caller had gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from paddock import model
from paddock.backends.pump import Pump
from paddock.daemon.tasks import in_thread
from paddock.errors import DaemonLostError, InvalidArgumentError, InvalidStateError, PaddockError, exhaustion
from paddock.model import codec, replace
from paddock.model.caller import DIRECTORIES, ENVIRONMENT, SESSION
from paddock.wire import AGAIN, Frame, Kind

from ._handles import OPENERS, Opened, open_exec
from ._recent_requests import PendingRequest, RecentRequests, Reply
from ._sessions import Session, all_of

R = TypeVar("R")
MAX_INPUT = 1 << 30
_MOST_ID = 64
_PART_ROWS = 128
_CHANGES = (model.MountDiff, model.Promotion, model.WorkspaceDiff)
_log = logging.getLogger("paddock")
_progress: ContextVar[tuple[asyncio.AbstractEventLoop, Reply] | None] = ContextVar("progress", default=None)


class Api(Protocol):
    """What the daemon listens for: a `Service`, or what a test puts in its place."""

    async def perform(self, action: model.Action[R], principal: model.Principal) -> R: ...


class ProgressHandler(logging.Handler):
    """Sends what the library says in its log while it works for a request to the client of that request: what takes
    long, as information, and warnings. Errors that did not stop the work (`errors.logged`) are for the log alone."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == _log.name and (to := _progress.get()) is not None:
            loop, reply = to
            message = {"warning" if record.levelno == logging.WARNING else "progress": record.getMessage()[:1000]}
            with contextlib.suppress(RuntimeError):  # from any thread
                loop.call_soon_threadsafe(reply, Kind.CONTROL, codec.encode(message))


_UNDONE = frozenset((model.CreateSandbox, model.ForkSandbox, model.KillSandbox, *OPENERS))
"""Actions that are undone, or completed, when their caller leaves before the answer. Others are cancelled."""


class Requests:
    """Performs the requests of all connections. `control` answers the ones about the daemon itself."""

    def __init__(
        self,
        api: Api,
        principal: model.Principal,
        *,
        control: Callable[[str, Session], Any],
        kept: Callable[[str], Awaitable[bool]] | None = None,
    ) -> None:
        self._api, self._principal, self._control = api, principal, control
        self._kept = kept
        self._pump = Pump()
        self.recent = RecentRequests()
        self.leaves = False
        """This daemon leaves: finished sandboxes live on, and the next daemon finds their sessions."""

    async def answer(self, session: Session, frame: Frame, reply: Reply) -> None:
        """Send one REPLY or ERROR, unless cancelled."""
        try:
            request = codec.decode(frame.body, codec.Request)
        except codec.Malformed as error:
            return reply(Kind.ERROR, codec.encode_error(_refusal(error)))
        task, key = asyncio.current_task(), (session.token, request.id or "")
        assert task is not None
        if request.id is not None:
            if len(request.id) > _MOST_ID:
                return reply(
                    Kind.ERROR, codec.encode_error(InvalidArgumentError(f"an id of {len(request.id)} characters"))
                )
            if frame.flags & AGAIN and await self._answered(session, request, key, reply):
                return None
            reply = self.recent.begin(key, task, reply)
        _progress.set((task.get_loop(), reply))
        try:
            if request.action is not None:
                session.has_asked = True
                await self._perform(task, session, request.action, request, frame, reply)
            else:
                reply(Kind.REPLY, await _encoded(await self._control_or_call(session, request)))
        except PaddockError as error:
            reply(Kind.ERROR, codec.encode_error(error))
        except ImportError as error:  # some modules are loaded at their first use
            _log.exception("a request failed")
            replaced = InvalidStateError(
                f"paddock's files were replaced after the daemon started: {error}", hint="paddock daemon restart"
            )
            reply(Kind.ERROR, codec.encode_error(replaced))
        except Exception as error:
            exhausted = exhaustion(error) if isinstance(error, OSError | RuntimeError) else None
            if exhausted is None and not isinstance(error, OSError):
                _log.exception("a request failed")
            reply(Kind.ERROR, codec.encode_error(exhausted or error))
        finally:
            _progress.set(None)  # a cycle through the task's context would keep the answer until the collector comes
            if isinstance(reply, PendingRequest):
                self.recent.finish(key, reply)

    async def _answered(self, session: Session, request: codec.Request, key: tuple[str, str], reply: Reply) -> bool:
        """Tell whether a repeated request has got its answer. If not, it may be performed: nothing happens twice."""
        found = self.recent.find(key)
        if isinstance(found, PendingRequest):
            if await found.answered_to(reply):
                return True
        elif found is not None:
            if not found.had_descriptors:
                reply(found.kind, found.body)
                return True
            await let_go(session, found.body)
        if isinstance(request.action, model.CreateSandbox) or (
            request.action is not None and request.action.REPEATABLE
        ):
            return False
        if isinstance(request.action, model.RunExec) and self._kept and await self._kept(request.action.id or key[1]):
            return False
        reply(Kind.ERROR, codec.encode_error(DaemonLostError("nobody knows what became of it", unknown=True)))
        return True

    async def _control_or_call(self, session: Session, request: codec.Request) -> object:
        if request.control is not None:
            return await self._control(request.control, session)
        if request.call is None:
            raise InvalidArgumentError("a request without an action")
        session.has_asked = True
        result = await session.handle(request.call.handle).call(request.call)
        if request.call.method in ("close", "abort", "leave"):
            session.handles.pop(request.call.handle, None)
        return result

    async def _perform(
        self,
        task: asyncio.Task[None],
        session: Session,
        action: model.Action[Any],
        request: codec.Request,
        frame: Frame,
        reply: Reply,
    ) -> None:
        named = _named(action, request.id)
        if request.has_input and isinstance(named, model.RunExec):
            named = replace(named, input=await asyncio.to_thread(_read_all, frame.descriptors[0]))
        SESSION.set(session.process)
        ENVIRONMENT.set(request.environment)
        DIRECTORIES.set(request.directories)
        result: Any = await self._api.perform(named, self._principal)
        if isinstance(named, model.CreateSandbox) and named is not action and result.ended_at is not None:
            # This daemon or the one before undid what the request made, and the caller asks again: make another.
            again = replace(named, idempotency_key=f"{named.idempotency_key} again")
            result = await self._api.perform(again, self._principal)
        if type(action) not in _UNDONE:
            reply(Kind.REPLY, await _encoded(result))
            return
        try:
            if task.cancelling() and not (self.leaves and isinstance(action, model.CreateSandbox | model.ForkSandbox)):
                raise asyncio.CancelledError
            opened = self._open(session, action, result, frame.descriptors[0] if request.has_input else None)
        except BaseException:  # no descriptor for its streams, or its caller has left
            await self._undo(action, result)
            raise
        if opened is None:
            reply(Kind.REPLY, codec.encode(result))
        else:
            reply(Kind.REPLY, codec.encode(opened.reply), opened.descriptors)

    def _open(self, session: Session, action: model.Action[Any], result: Any, input: int | None) -> Opened | None:
        make = OPENERS.get(type(action))
        if make is None:
            return None
        if isinstance(action, model.AttachExec) and input is not None:
            make = partial(open_exec, near=os.dup(input))
        number = session.next_handle()
        opened = session.handles[number] = make(number, result, self._pump)
        return opened

    async def _undo(self, action: model.Action[Any], result: Any) -> None:
        """Give back what a client asked for and left before it came."""
        if self.leaves and isinstance(action, model.AttachExec):
            return  # the next daemon is asked for it
        sandboxes: tuple[model.Sandbox, ...] = ()
        if isinstance(action, model.CreateSandbox) and not action.idempotency_key:
            sandboxes = (result,)
        elif isinstance(action, model.ForkSandbox):
            sandboxes = result
        elif hasattr(result, "leave"):
            await result.leave()
        elif hasattr(result, "abort"):
            await result.abort()
        elif hasattr(result, "aclose"):
            await result.aclose()
        await all_of(self._api.perform(model.KillSandbox(sandbox=sandbox.id), self._principal) for sandbox in sandboxes)


def _refusal(error: codec.Malformed) -> InvalidArgumentError:
    """Name the argument of another type as the caller knows it. The client makes a TypeError of this."""
    if not isinstance(error, codec.WrongType):
        return InvalidArgumentError(f"not a request: {error}")
    name = error.path.removeprefix(".call").removeprefix(".action").removeprefix(".spec").lstrip(".")
    return InvalidArgumentError(f"{name}: expected {error.wanted}, got {error.found}", wrong_type=name)


async def _encoded(result: object) -> bytes:
    """Encode a long list part by part, and changes in a thread: at once they would hold the loop."""
    if isinstance(result, _CHANGES):
        return await in_thread(codec.encode, result)
    if not isinstance(result, tuple):
        return codec.encode(result)
    rows = cast("tuple[object, ...]", result)
    if len(rows) <= _PART_ROWS:
        return codec.encode(rows)
    parts: list[bytes] = []
    for at in range(0, len(rows), _PART_ROWS):
        parts.append(codec.encode(rows[at : at + _PART_ROWS])[1:-1])
        await asyncio.sleep(0)
    return b"[" + b",".join(parts) + b"]"


def _named(action: model.Action[Any], id: str | None) -> model.Action[Any]:
    """With the request's id where an id outlives this daemon: that of a command, the key of a sandbox."""
    if isinstance(action, model.RunExec | model.StartExec):
        return replace(action, id=id) if action.id is None else action
    if isinstance(action, model.CreateSandbox) and action.idempotency_key is None:
        return replace(action, idempotency_key=id)
    return action


async def let_go(session: Session, answer: bytes) -> None:
    """Close a handle whose descriptors its caller never gets."""
    opened = session.handles.pop(codec.decode(answer, codec.Handle).handle, None)
    if opened is not None:
        await opened.leave()


def _read_all(descriptor: int) -> bytes:
    """Read a memfd of the client's, from its start."""
    size = os.fstat(descriptor).st_size
    if size > MAX_INPUT:
        raise InvalidArgumentError(f"an input of {size} bytes", hint=f"at most {MAX_INPUT}: write it into a file")
    data = bytearray()
    while len(data) < size and (part := os.pread(descriptor, size - len(data), len(data))):
        data += part
    return bytes(data)
