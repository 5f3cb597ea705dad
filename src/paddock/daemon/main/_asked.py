"""Remember requests by the ids that clients gave them, so that no request is performed twice.

A client asks again when its connection ends before the answer. A request that is under way then goes on for
`RETURN_SECONDS`, and answers on the connection on which it is asked again. The last answers are kept, within bounds.
A daemon that has died may have performed a request whose id is not found, or its answer was evicted.
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
    """Sends one frame of the request's channel; what the client no longer wants is dropped."""

    def __call__(self, kind: Kind, body: bytes, descriptors: tuple[int, ...] = ()) -> None: ...


class Answer(NamedTuple):
    kind: Kind
    body: bytes
    had_descriptors: bool
    """They are not there a second time."""


class Asked:
    """A request that is under way. Called as a `Reply`, it sends to whoever asked last."""

    def __init__(self, task: asyncio.Task[None], reply: Reply) -> None:
        self.task, self._reply = task, reply
        self.answer: Answer | None = None
        self._reattach = False
        self._end: asyncio.TimerHandle | None = None

    def __call__(self, kind: Kind, body: bytes, descriptors: tuple[int, ...] = ()) -> None:
        if kind is not Kind.CONTROL:
            self.answer = Answer(kind, body, bool(descriptors))
        self._reply(kind, body, descriptors)

    def left_alone(self) -> None:
        """Its connection has ended, perhaps after it was asked again. Nothing disturbs one that is being undone."""
        if not self._reattach and not self.task.cancelling():
            self._end = asyncio.get_running_loop().call_later(RETURN_SECONDS, self.task.cancel)

    async def answered_to(self, reply: Reply) -> bool:
        """Wait until it is done. False where it ended without an answer. Who cancels this cancels it."""
        self._reply, self._reattach = reply, True
        self.stay()
        try:
            await asyncio.wait((self.task,))
        except asyncio.CancelledError:
            self.task.cancel()
            await asyncio.wait((self.task,))
            raise
        return self.answer is not None

    def stay(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None


class Memory:
    """The requests of all sessions: those under way, and the answers of the last ones."""

    def __init__(self) -> None:
        self._under_way: dict[Key, Asked] = {}
        self._answers: dict[Key, Answer] = {}
        self._bytes = 0

    def begin(self, key: Key, task: asyncio.Task[None], reply: Reply) -> Asked:
        asked = self._under_way[key] = Asked(task, reply)
        return asked

    def over(self, key: Key, asked: Asked) -> None:
        asked.stay()
        if self._under_way.get(key) is asked:
            del self._under_way[key]
        if asked.answer is None:
            return
        self._drop(key)
        self._answers[key] = asked.answer
        self._bytes += len(asked.answer.body)
        while len(self._answers) > _MOST or self._bytes > _MOST_BYTES:
            self._drop(next(iter(self._answers)))

    def find(self, key: Key) -> Asked | Answer | None:
        return self._under_way.get(key) or self._answers.get(key)

    def leave(self, task: asyncio.Task[None]) -> bool:
        """Its connection has ended. False where it can't be asked for again."""
        for asked in self._under_way.values():
            if asked.task is task:
                asked.left_alone()
                return True
        return False

    def end(self, session: str) -> None:
        """Nobody asks for it again: what is under way is cancelled."""
        for key, asked in self._under_way.items():
            if key[0] == session:
                asked.task.cancel()

    def _drop(self, key: Key) -> None:
        answer = self._answers.pop(key, None)
        if answer is not None:
            self._bytes -= len(answer.body)
