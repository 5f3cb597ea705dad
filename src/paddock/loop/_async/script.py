"""A model that says what it was told to say: for tests, demonstrations, and runs without a model."""

from __future__ import annotations

from collections.abc import Sequence

from paddock.errors import ModelFailed
from paddock.loop._budget import Price
from paddock.loop._messages import Message, Reply, Role, ToolSpec


class AsyncScriptModel:
    """`replies` in their order, in each run from the start: which comes next is counted in the messages.

    After the last one it fails.
    """

    def __init__(self, replies: Sequence[Reply], *, name: str = "script", price: Price | None = None) -> None:
        self._replies = tuple(replies)
        self.name, self.price = name, price

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        max_tokens: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Reply:
        said = sum(message.role is Role.ASSISTANT for message in messages)
        if said >= len(self._replies):
            raise ModelFailed(f"{self.name} has no more than {len(self._replies)} replies")
        return self._replies[said]
