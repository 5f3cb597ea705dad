"""Endpoints that speak OpenAI's chat completions: OpenAI's own, vLLM, llama.cpp, Ollama, and most others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paddock.loop import _openai
from paddock.loop._budget import Price
from paddock.loop._endpoint import MAX_OUTPUT_TOKENS, MAX_RETRIES, TIMEOUT_SECONDS, failure, missing, unusable
from paddock.loop._messages import Message, Reply, ToolSpec


class AsyncOpenAIModel:
    """Through OpenAI's SDK: `pip install openai`.

    Without `api_key` and `base_url` the SDK takes OPENAI_API_KEY and OPENAI_BASE_URL. Retries are the SDK's. `options`
    are fields of each request: `{"temperature": 0.7}`. NotConfigured: no SDK, or no key.
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
            from openai import AsyncOpenAI, OpenAIError
        except ImportError:
            raise missing("openai") from None
        try:
            self._client = AsyncOpenAI(
                api_key=api_key, base_url=base_url, max_retries=max_retries, timeout=timeout_seconds
            )
        except OpenAIError as error:
            raise unusable("openai", error, "OPENAI_API_KEY") from None
        self._name = name
        self._price = price
        self._max_output_tokens = max_output_tokens
        self._timeout_seconds = timeout_seconds
        self._options = dict(options or {})
        self._official = self._client.base_url.host == "api.openai.com"

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
        fields = _openai.request(self._name, messages, tools, length, official=self._official) | self._options
        seconds = min(timeout_seconds or self._timeout_seconds, self._timeout_seconds)
        create: Any = self._client.chat.completions.with_raw_response.create
        try:
            answer = await create(**fields, timeout=seconds)
            body: bytes = answer.http_response.content
        except Exception as error:  # whatever the SDK and what is below it raise, it is the endpoint's answer
            raise failure(self._name, error, self._client.api_key) from error
        return _openai.reply(self._name, body)

    async def aclose(self) -> None:
        """Its connections."""
        await self._client.close()
