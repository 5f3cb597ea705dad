"""Endpoints that speak Anthropic's messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paddock.loop import _anthropic
from paddock.loop._budget import Price
from paddock.loop._endpoint import MAX_OUTPUT_TOKENS, MAX_RETRIES, TIMEOUT_SECONDS, failure, missing, unusable
from paddock.loop._messages import Message, Reply, ToolSpec


class AsyncAnthropicModel:
    """Through Anthropic's SDK: `pip install anthropic`.

    Without `api_key` and `base_url` the SDK takes ANTHROPIC_API_KEY and ANTHROPIC_BASE_URL. Retries are the SDK's.
    `options` are fields of each request. NotConfigured: no SDK, or no key.
    """

    def __init__(
        self,
        name: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        price: Price | None = None,
        max_output_tokens: int = MAX_OUTPUT_TOKENS,
        timeout_seconds: float = TIMEOUT_SECONDS,
        max_retries: int = MAX_RETRIES,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        try:
            from anthropic import AnthropicError, AsyncAnthropic
        except ImportError:
            raise missing("anthropic") from None
        try:
            self._client = AsyncAnthropic(
                api_key=api_key, base_url=base_url, max_retries=max_retries, timeout=timeout_seconds
            )
        except AnthropicError as error:
            raise unusable("anthropic", error, "ANTHROPIC_API_KEY") from None
        # The SDK would say so at the first request, which is after everything was set up.
        if not any(getattr(self._client, name, None) for name in ("api_key", "auth_token", "credentials")):
            raise unusable("anthropic", "it has no key", "ANTHROPIC_API_KEY")
        self._name = name
        self._price = price
        self._max_output_tokens = max_output_tokens
        self._timeout_seconds = timeout_seconds
        self._options = dict(options or {})

    @property
    def name(self) -> str:
        return self._name

    @property
    def price(self) -> Price | None:
        return self._price

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        max_tokens: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Reply:
        length = min(max_tokens or self._max_output_tokens, self._max_output_tokens)
        fields = _anthropic.request(self._name, messages, tools, length) | self._options
        seconds = min(timeout_seconds or self._timeout_seconds, self._timeout_seconds)
        create: Any = self._client.messages.with_raw_response.create
        try:
            answer = await create(**fields, timeout=seconds)
            body: bytes = answer.http_response.content
        except Exception as error:  # whatever the SDK and what is below it raise, it is the endpoint's answer
            raise failure(self._name, error, self._client.api_key) from error
        return _anthropic.reply(self._name, body)

    async def aclose(self) -> None:
        """Its connections."""
        await self._client.close()
