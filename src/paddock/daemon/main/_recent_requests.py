"""Remember requests by the ids that clients gave them, so that each is performed once.

A client repeats a request when its connection ends before the answer. A pending request then continues for
`RETURN_SECONDS`, and answers on the connection that repeats it. The last answers are kept, within bounds. If the id
isn't found, a dead daemon may have performed it, or its answer was evicted.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol, TypeAlias

from paddock.wire import Kind

RETURN_SECONDS = 2.0
"""A client whose connection has ended connects again at once, if it lives."""
_MOST = 1024
_MOST_BYTES = 8 << 20

Key: TypeAlias = tuple[str, str]
"""The token of a session, and the id of a request."""


class Reply(Protocol):
    """Send one frame of the request's channel, if the client still wants it."""

    def __call__(self, kind: Kind, body: bytes, descriptors: tuple[int, ...] = ()) -> None: ...


class Answer(NamedTuple):
    kind: Kind
    body: bytes
    had_descriptors: bool
    """Its descriptors are gone: only the first answer had them."""


class PendingRequest:
    """Hold a pending request. Called as a `Reply`, it sends to its latest connection."""

    def __init__(self, task: asyncio.Task[None], reply: Reply) -> None:
        self.task, self._reply = task, reply
        self.answer: Answer | None = None
        self._is_repeated = False
        self._timeout: asyncio.TimerHandle | None = None

    def __call__(self, kind: Kind, body: bytes, descriptors: tuple[int, ...] = ()) -> None:
        if kind is not Kind.CONTROL:
            self.answer = Answer(kind, body, bool(descriptors))
        self._reply(kind, body, descriptors)

    def connection_lost(self) -> None:
        """Note that its connection has ended, unless another one has repeated it. An undo in progress continues."""
        if not self._is_repeated and not self.task.cancelling():
            self._timeout = asyncio.get_running_loop().call_later(RETURN_SECONDS, self.task.cancel)

    async def answered_to(self, reply: Reply) -> bool:
        """Wait until it is done. Return False if it ended without an answer. Cancelling this cancels it."""
        self._reply, self._is_repeated = reply, True
        self.cancel_timeout()
        try:
            await asyncio.wait((self.task,))
        except asyncio.CancelledError:
            self.task.cancel()
            await asyncio.wait((self.task,))
            raise
        return self.answer is not None

    def cancel_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None


class RecentRequests:
    """The requests of all sessions: those under way, and the answers of the last ones."""

    def __init__(self) -> None:
        self._pending: dict[Key, PendingRequest] = {}
        self._answers: dict[Key, Answer] = {}
        self._bytes = 0

    def begin(self, key: Key, task: asyncio.Task[None], reply: Reply) -> PendingRequest:
        pending = self._pending[key] = PendingRequest(task, reply)
        return pending

    def finish(self, key: Key, pending: PendingRequest) -> None:
        pending.cancel_timeout()
        if self._pending.get(key) is pending:
            del self._pending[key]
        if pending.answer is None:
            return
        self._drop(key)
        self._answers[key] = pending.answer
        self._bytes += len(pending.answer.body)
        while len(self._answers) > _MOST or self._bytes > _MOST_BYTES:
            self._drop(next(iter(self._answers)))

    def find(self, key: Key) -> PendingRequest | Answer | None:
        return self._pending.get(key) or self._answers.get(key)

    def connection_lost(self, task: asyncio.Task[None]) -> bool:
        """Note that its connection has ended. Return False if it can't be repeated."""
        for pending in self._pending.values():
            if pending.task is task:
                pending.connection_lost()
                return True
        return False

    def end(self, session: str) -> None:
        """Cancel the pending requests of a session: no connection repeats them."""
        for key, pending in self._pending.items():
            if key[0] == session:
                pending.task.cancel()

    def _drop(self, key: Key) -> None:
        answer = self._answers.pop(key, None)
        if answer is not None:
            self._bytes -= len(answer.body)
