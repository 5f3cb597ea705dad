"""The transport to the daemon: the request of an action, and the result of its answer."""

from __future__ import annotations

import os

from paddock.client._session import new_id, request_of, session
from paddock.errors import DaemonLostError, PaddockError
from paddock.model import CreateSandbox, KillSandbox, RunExec, codec
from paddock.wire import Frame, close_all

from .calls import AsyncCalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from paddock.model import Action


class AsyncDaemonTransport(AsyncCalls):
    """Carries actions to the daemon, for any number of threads and tasks."""

    async def perform(self, action: Action[Any]) -> Any:
        id = new_id(action)
        body, descriptors = request_of(action, id)
        try:
            frame = await self.ask(
                body,
                descriptors,
                repeatable=action.REPEATABLE or isinstance(action, CreateSandbox | RunExec),
                cancels=not isinstance(action, KillSandbox),
                action=action,
                id=id,
            )
        except (PaddockError, OSError) as error:
            raise error.with_traceback(None)  # noqa: B904 - it is the same error, without the frames of the protocol
        finally:
            close_all(descriptors)
        match action.RESULT:
            case "ExecHandle":
                from .process import AsyncProcess

                return AsyncProcess(self, frame, action)
            case "ByteReader":
                from .process import AsyncReader

                return AsyncReader.opened(self, frame)
            case "ByteWriter":
                from .process import AsyncWriter

                return AsyncWriter.opened(self, frame)
            case "ByteStream":
                from .connection import AsyncConnection

                return AsyncConnection.opened(self, frame)
            case "ChangeStream":
                from .changes import AsyncChanges
                from .handles import Handle, decoded

                return AsyncChanges(Handle(self, decoded(frame).handle, "close"))
            case "Promotion" | "PushedBranch" | "PullRequest":
                return await _carry_out(self, frame, action)
            case _:
                return codec.decode_result(frame.body, type(action))

    def blocking(self) -> object:
        """Return the transport of the same session for threads."""
        from paddock.client._sync.daemon import DaemonTransport

        return DaemonTransport(self.session)

    async def control(self, what: str) -> bytes:
        """`status`, `stop` or `restart` of the daemon itself."""
        body = codec.encode(codec.Request(control=what))
        return (await self.ask(body, (), again=what == "status")).body

    async def aclose(self) -> None:
        """Do nothing: the session belongs to this process, not to this transport."""


def default_async_transport(state_dir: str | os.PathLike[str] | None = None) -> AsyncDaemonTransport:
    """Return the transport to the daemon of a state directory, by the name `paddock.local_async`.

    The first call starts the daemon.

    Args:
        state_dir: The directory. None: the default one, or PADDOCK_STATE_DIR.

    Returns:
        A transport, for the argument of that name.

    Example:
        ```python
        here = local_async()
        async with await AsyncSandbox.create(transport=here) as other:
            print(other.state)  # running
        ```
    """
    return AsyncDaemonTransport(session(state_dir))


async def _carry_out(calls: AsyncCalls, frame: Frame, action: Action[Any]) -> Any:
    """Carry out the daemon's plan as the caller, and report the result to the daemon.

    It writes a promotion on the host, or pushes to a remote with this process's credentials.
    """
    from contextlib import suppress

    from paddock.client._blocking import arun_whole

    handle: codec.Handle = codec.decode(frame.body, codec.Handle)
    done: dict[str, Any] = {}
    try:
        try:
            if handle.plan is not None:
                from paddock.client._promote import promote

                await arun_whole(promote, handle.plan, *frame.descriptors)
            else:
                from paddock.client._publish import publish

                done["published"] = await arun_whole(publish, handle, calls.session.state_dir)
        finally:
            close_all(frame.descriptors)
        return codec.decode_result(await calls.call(handle.handle, "finish", cancels=False, **done), type(action))
    finally:
        with suppress(DaemonLostError):  # it went with its daemon
            await calls.call(handle.handle, "close", cancels=False)
