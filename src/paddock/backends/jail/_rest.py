"""The service's side of pausing: what it asks of the keeper, and what it was told."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, cast

from paddock.backends._base import Paused
from paddock.backends._stillness import Stillness
from paddock.backends.jail._keeper import KeeperClient, Message
from paddock.errors import PaddockError
from paddock.model import SandboxId


class Rest:
    """Of the sandboxes of one backend. `start` runs work that nobody waits for."""

    def __init__(self, keeper: KeeperClient, start: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._keeper, self._start = keeper, start
        self._stillness: dict[str, Stillness] = {}
        self._awake: dict[int, tuple[SandboxId, int]] = {}

    def stillness(self, id: SandboxId) -> Stillness:
        return self._stillness.get(id) or self._stillness.setdefault(id, Stillness())

    def forget(self, id: SandboxId) -> None:
        self.told(id, False)  # whoever waits for that waits no more
        self._stillness.pop(id, None)

    def told(self, id: str, paused: bool) -> None:
        if (known := self._stillness.get(id)) is None:
            return
        if paused:
            known.begin()
        else:
            known.end()

    def listed(self, answer: Message) -> dict[SandboxId, Paused]:
        """Those that are paused, by what the keeper has listed: what it told may have been missed."""
        listed = cast("dict[str, Message]", answer["paused"])
        paused = {SandboxId(id): _paused(times) for id, times in listed.items()}
        for id in self._stillness:
            self.told(id, id in paused)
        return paused

    async def pause(self, id: SandboxId, incarnation: int) -> Paused:
        answer = await self._keeper.request("pause", id=id, incarnation=incarnation)
        self.told(id, True)
        return _paused(answer)

    async def resume(self, id: SandboxId, incarnation: int) -> float:
        answer = await self._keeper.request("resume", id=id, incarnation=incarnation)
        self.told(id, False)
        return float(answer["deadline"])

    async def stay_awake(self, id: SandboxId, incarnation: int) -> Callable[[], None]:
        hold = next(self._keeper.holds)
        self._awake[hold] = id, incarnation

        def let_go() -> None:
            if self._awake.pop(hold, None) is not None:
                self._start(self._let_go(id, hold))

        try:
            await self._keeper.request("awake", id=id, incarnation=incarnation, hold=hold)
        except BaseException:
            let_go()
            raise
        return let_go

    async def hold_again(self) -> None:
        """With a keeper that knows nothing of it."""
        for hold, (id, incarnation) in list(self._awake.items()):
            if hold in self._awake:  # what was let go meanwhile would be held for ever
                await self._keeper.request("awake", id=id, incarnation=incarnation, hold=hold)

    async def _let_go(self, id: SandboxId, hold: int) -> None:
        try:
            await self._keeper.tell("rest", id=id, hold=hold)
        except PaddockError:
            pass  # it keeps nothing awake for a connection that has ended


def _paused(times: Message) -> Paused:
    return Paused(times["left"], float(times["deadline"]))
