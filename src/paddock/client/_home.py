"""What an in-process transport needs of a service: its door, its loop, and who is asking."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from paddock.model import Action, CreateSandbox, ForkSandbox, KillSandbox, Principal, Sandbox

from ._bridge import LoopThread

R = TypeVar("R")


class Door(Protocol):
    async def perform(self, action: Action[R], principal: Principal) -> R: ...


@dataclass(frozen=True, kw_only=True)
class Home:
    """One embedded service: `door` may be used on `loop` only."""

    loop: LoopThread
    door: Door
    principal: Principal

    def undo(self, action: Action[Any], result: object) -> Coroutine[Any, Any, object] | None:
        """Gives back what a caller asked for and left before it came."""
        if isinstance(action, CreateSandbox) and isinstance(result, Sandbox) and not action.idempotency_key:
            return self._kill((result,))
        if isinstance(action, ForkSandbox):
            return self._kill(cast("tuple[Sandbox, ...]", result))
        return letting_go(result) if hasattr(result, "aclose") else None

    async def _kill(self, left: tuple[Sandbox, ...]) -> None:
        for sandbox in left:
            await self.door.perform(KillSandbox(sandbox=sandbox.id), self.principal)


async def letting_go(handle: Any) -> None:
    """Ends a handle without its effect."""
    await (handle.abort() if hasattr(handle, "abort") else handle.aclose())


async def ending(handle: Any) -> Any:
    """Under a name that has no colour, for what is generated."""
    return await handle.aclose()
