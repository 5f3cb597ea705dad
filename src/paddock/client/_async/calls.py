"""Requests to the daemon, each sent once more where that is safe."""

from __future__ import annotations

import os

from paddock.client._async_connections import AsyncDaemonConnections
from paddock.client._session import answered, handle_methods, lost, too_many_under_way
from paddock.errors import DaemonLostError, DaemonUnavailableError, PaddockError
from paddock.wire import AGAIN, Frame, NotSent, WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from paddock.client._session import Session
    from paddock.model import Action

_ATTEMPTS = 5
"""Methods that the next daemon can repeat, five times in all."""


class AsyncCalls:
    """Requests to the daemon, for any number of threads and tasks.

    An interrupted or cancelled call ends after its undo. A second interrupt doesn't wait for that.
    """

    def __init__(self, session: Session) -> None:
        self._connections = AsyncDaemonConnections(session)
        self.session = session

    async def call(self, handle: int, method: str, *, cancels: bool = True, **fields: Any) -> bytes:
        """Call a method of a handle, and return its encoded answer."""
        body = handle_methods(handle, method, id=os.urandom(16).hex(), **fields)
        return (await self.ask(body, (), cancels=cancels)).body

    async def ask(
        self,
        body: bytes,
        descriptors: tuple[int, ...],
        *,
        again: bool = True,
        repeatable: bool = False,
        cancels: bool = True,
        action: Action[Any] | None = None,
        id: str | None = None,
    ) -> Frame:
        """Return the REPLY.

        Raise the daemon's error, or DaemonLostError if the outcome of `action` isn't known.

        If the connection ends, this sends the request once more, on a new connection: the others may lead to a dying
        daemon. If the daemon had the whole request, it gets it as `AGAIN`, unless not `again`. It then knows the
        outcome, or reports that it doesn't. A leaving daemon names the requests that it hasn't started, and this sends
        them to the next one. It repeats a request in progress only if that is `repeatable`, five times in all.
        """
        problem, flags = "", 0  # a text: the exception would keep the callers' frames, and the streams in them, alive
        connection = None
        for _ in range(_ATTEMPTS if repeatable else 2):
            try:
                connection = await self._connections.take(connection)
            except (OSError, PaddockError) as error:
                if not flags:
                    raise
                problem = str(error)
                break
            try:
                frame = await connection.perform(body, descriptors, cancels=cancels, action=action, flags=flags)
            except NotSent as error:
                problem = str(error)
                continue
            except (OSError, WireError) as error:
                if (refused := too_many_under_way(error)) is not None:
                    raise refused from None
                problem = str(error)
            else:
                try:  # the answer may be an OSError too, such as that of a file
                    return answered(frame, self.session.give_up)
                except DaemonLostError as error:  # it leaves, or it is the next one
                    problem, again = error.message, again and repeatable and "unknown" not in error.details
            flags = AGAIN
            if not again:
                break
        if flags:
            raise lost(action, id, problem)
        raise DaemonUnavailableError(
            f"the request did not reach the daemon, so nothing was started: {problem}", hint="ask again"
        )
