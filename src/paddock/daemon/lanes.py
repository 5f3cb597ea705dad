"""Lanes: the order of verbs on one sandbox, workspace, snapshot, repository or image. See docs/design/order.md.

A lane is a fair readers-writer lock in the memory of the one process that owns the state directory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum, auto
from typing import Self

PATIENCE_SECONDS = 30.0


class KilledMeanwhile(Exception):
    """A kill cancelled the verb that held the lane of `id`. The kill runs next."""

    def __init__(self, id: str) -> None:
        super().__init__(f"{id} is being killed")
        self.id = id


class _Mode(Enum):
    SHARED = auto()
    EXCLUSIVE = auto()
    OVERTAKING = auto()


class Lanes:
    """The lane of each id. A lane exists while someone holds it or waits for it."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}

    def is_free(self, id: str) -> bool:
        """Tell whether no task holds it or waits for it."""
        return id not in self._lanes

    def shared(self, id: str) -> Hold:
        """Hold the lane together with others. Excludes `exclusive`."""
        return Hold(self._lanes, id, _Mode.SHARED)

    def exclusive(self, id: str) -> Hold:
        """Hold the lane alone. Raises Overtaken in place of the cancellation by `overtake`."""
        return Hold(self._lanes, id, _Mode.EXCLUSIVE)

    def overtake(self, id: str) -> Hold:
        """Cancel the exclusive holder, wait for its end, and hold the lane ahead of the queue.

        Doesn't wait for shared holders: what they wait for is about to end. Waits `PATIENCE_SECONDS` for the end of an
        exclusive one, whose undo may hang, and then takes the lane beside it.
        """
        return Hold(self._lanes, id, _Mode.OVERTAKING, PATIENCE_SECONDS)


class Hold:
    """One task's hold on a lane, for one `async with` block."""

    def __init__(self, lanes: dict[str, _Lane], id: str, mode: _Mode, patience_seconds: float | None = None) -> None:
        self._lanes, self.id, self.mode = lanes, id, mode
        self.patience_seconds = patience_seconds
        self.overtaken = False
        """A kill has cancelled this holder."""

    async def __aenter__(self) -> Self:
        if self.mode is not _Mode.SHARED:  # a kill cancels no other
            self._begin()
        lane = self._lanes.get(self.id)
        if lane is None:
            self._lane = self._lanes[self.id] = _Lane(self)
            return self
        self._lane = lane
        try:
            await lane.enter(self)
        except BaseException as error:
            self._forget()
            self._translate(type(error))
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._lane.leave(self)
        self._forget()
        if self.overtaken:
            self._translate(kind)

    async def exclude(self) -> None:
        """Give the share back and queue for the lane alone: others may come between."""
        assert self.mode is _Mode.SHARED
        self._lane.leave(self)
        self.mode = _Mode.EXCLUSIVE
        self._begin()
        await self._lane.enter(self)

    def share(self) -> None:
        """Keep the lane, and let other shared holders in."""
        self._lane.share(self)

    def _begin(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()

    def cancel(self) -> None:
        self.overtaken = True
        self._task.cancel()

    def _forget(self) -> None:
        if self._lane.is_unused and self._lanes.get(self.id) is self._lane:
            del self._lanes[self.id]

    def _translate(self, kind: type[BaseException] | None) -> None:
        """As asyncio.timeout: our own cancellation becomes Overtaken, the caller's stays one."""
        if (
            self.overtaken
            and self._task.uncancel() <= self._cancelling
            and kind is not None
            and issubclass(kind, asyncio.CancelledError)
        ):
            raise KilledMeanwhile(self.id) from None


class _Lane:
    def __init__(self, first: Hold) -> None:
        self._holds = {first}
        self._queue: deque[tuple[Hold, asyncio.Future[None]]] = deque()

    @property
    def is_unused(self) -> bool:
        return not self._holds and not self._queue

    async def enter(self, hold: Hold) -> None:
        overtaking = hold.mode is _Mode.OVERTAKING
        if overtaking:
            for one in self._holds:
                if one.mode is _Mode.EXCLUSIVE and not one.overtaken:
                    one.cancel()
        if self._admits(hold) and (overtaking or not self._queue):
            self._holds.add(hold)
            return
        granted = asyncio.get_running_loop().create_future()
        waiting = (hold, granted)
        if overtaking:
            self._queue.appendleft(waiting)
        else:
            self._queue.append(waiting)
        try:
            await asyncio.wait((granted,), timeout=hold.patience_seconds)
            if not granted.done():
                self._queue.remove(waiting)
                self._holds.add(hold)
        except BaseException:
            granted.cancel()
            self._holds.discard(hold)  # granted in the moment of the cancellation
            if waiting in self._queue:
                self._queue.remove(waiting)
            self._grant()
            raise

    def leave(self, hold: Hold) -> None:
        self._holds.discard(hold)
        if self._queue:
            self._grant()

    def share(self, hold: Hold) -> None:
        hold.mode = _Mode.SHARED
        self._grant()

    def _admits(self, hold: Hold) -> bool:
        if hold.mode is _Mode.EXCLUSIVE:
            return not self._holds
        return all(one.mode is _Mode.SHARED for one in self._holds)

    def _grant(self) -> None:
        """In the order of the queue: no one passes another but a kill."""
        while self._queue and self._admits(self._queue[0][0]):
            hold, granted = self._queue.popleft()
            if not granted.done():  # else its task was cancelled, and has not run since
                self._holds.add(hold)
                granted.set_result(None)
