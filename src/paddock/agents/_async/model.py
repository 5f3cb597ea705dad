"""Models, behind one method: endpoints with an HTTP API, SDKs, and a scripted model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from paddock.agents import _anthropic, _openai
from paddock.agents._budget import Price
from paddock.agents._endpoint import MAX_OUTPUT_TOKENS, MAX_RETRIES, TIMEOUT_SECONDS, failure, missing, unusable
from paddock.agents._messages import Message, Reply, Role, ToolSpec
from paddock.errors import ModelFailedError


class AsyncModel(Protocol):
    """Keeps nothing between calls, so that many runs share one."""

    @property
    def name(self) -> str: ...

    @property
    def price(self) -> Price | None:
        """Return the price, or None if it isn't known. A budget of money then refuses the model."""
        ...

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        max_tokens: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Reply:
        """Return the next message. ModelFailedError when the endpoint does not give one."""
        ...


class AsyncEndpoint:
    """The common part of the models below: limits, and a translation of the SDK's errors."""

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
        self.name, self.price = name, price
        self._client = self._connect(
            api_key=api_key, base_url=base_url, max_retries=max_retries, timeout=timeout_seconds
        )
        self._max_output_tokens, self._timeout_seconds = max_output_tokens, timeout_seconds
        self._options = dict(options or {})

    def _connect(self, **settings: Any) -> Any:
        """Make the SDK's client. NotConfigured."""
        raise NotImplementedError

    def _request(self, messages: Sequence[Message], tools: Sequence[ToolSpec], max_tokens: int) -> dict[str, Any]:
        raise NotImplementedError

    def _create(self) -> Any:
        """Return the SDK's method that sends a request."""
        raise NotImplementedError

    def _reply(self, body: bytes) -> Reply:
        raise NotImplementedError

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        max_tokens: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Reply:
        length = min(max_tokens or self._max_output_tokens, self._max_output_tokens)
        fields = self._request(messages, tools, length) | self._options
        seconds = min(timeout_seconds or self._timeout_seconds, self._timeout_seconds)
        try:
            answer = await self._create()(**fields, timeout=seconds)
            body: bytes = answer.http_response.content
        except Exception as error:  # whatever the SDK and what is below it raise, it is the endpoint's answer
            raise failure(self.name, error, self._client.api_key) from error
        return self._reply(body)

    async def aclose(self) -> None:
        """Close its connections."""
        await self._client.close()


class AsyncOpenAIModel(AsyncEndpoint):
    """A model of OpenAI, or of a server with its chat completions: vLLM, llama.cpp, Ollama, and most others.

    It needs the SDK: `pip install 'paddock-sandbox[openai]'`. Without `api_key` and `base_url` the SDK takes
    OPENAI_API_KEY and OPENAI_BASE_URL. The SDK does the retries. `options` are fields of each request: `{"temperature":
    0.7}`. Raises NotConfiguredError without the SDK or a key.
    """

    def _connect(self, **settings: Any) -> Any:
        try:
            from openai import AsyncOpenAI, OpenAIError
        except ImportError:
            raise missing("openai") from None
        try:
            return AsyncOpenAI(**settings)
        except OpenAIError as error:
            raise unusable("openai", error, "OPENAI_API_KEY") from None

    def _request(self, messages: Sequence[Message], tools: Sequence[ToolSpec], max_tokens: int) -> dict[str, Any]:
        official = self._client.base_url.host == "api.openai.com"
        return _openai.request(self.name, messages, tools, max_tokens, official=official)

    def _create(self) -> Any:
        return self._client.chat.completions.with_raw_response.create

    def _reply(self, body: bytes) -> Reply:
        return _openai.reply(self.name, body)


class AsyncAnthropicModel(AsyncEndpoint):
    """A model behind Anthropic's messages API.

    Needs the SDK: `pip install 'paddock-sandbox[anthropic]'`. Without `api_key` and `base_url` the SDK takes
    ANTHROPIC_API_KEY and ANTHROPIC_BASE_URL. Retries are the SDK's. `options` are fields of each request.
    NotConfiguredError: no SDK, or no key.
    """

    def _connect(self, **settings: Any) -> Any:
        try:
            from anthropic import AnthropicError, AsyncAnthropic
        except ImportError:
            raise missing("anthropic") from None
        try:
            client = AsyncAnthropic(**settings)
        except AnthropicError as error:
            raise unusable("anthropic", error, "ANTHROPIC_API_KEY") from None
        # The SDK would report this only at the first request, after the whole setup.
        if not any(getattr(client, name, None) for name in ("api_key", "auth_token", "credentials")):
            raise unusable("anthropic", "it has no key", "ANTHROPIC_API_KEY")
        return client

    def _request(self, messages: Sequence[Message], tools: Sequence[ToolSpec], max_tokens: int) -> dict[str, Any]:
        return _anthropic.request(self.name, messages, tools, max_tokens)

    def _create(self) -> Any:
        return self._client.messages.with_raw_response.create

    def _reply(self, body: bytes) -> Reply:
        return _anthropic.reply(self.name, body)


class AsyncScriptModel:
    """A model for tests, demonstrations, and runs without a model.

    It gives `replies` in order, in each run from the start. It counts the messages to find the next one. After the last
    one it fails.
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
            raise ModelFailedError(f"{self.name} has no more than {len(self._replies)} replies")
        return self._replies[said]
