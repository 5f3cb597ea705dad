"""What thinks: one verb."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from paddock.loop._budget import Price
from paddock.loop._messages import Message, Reply, ToolSpec


class AsyncModel(Protocol):
    """Keeps nothing between calls, so that many runs share one."""

    @property
    def name(self) -> str: ...

    @property
    def price(self) -> Price | None:
        """None: nobody said. A budget of money refuses that."""
        ...

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        max_tokens: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Reply:
        """The next message. ModelFailed when the endpoint does not give one."""
        ...
