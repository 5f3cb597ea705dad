"""Models: those behind an API, through an SDK, and one that reads from a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from types import ModuleType
from typing import Any, Protocol

from paddock.agents import _anthropic, _openai
from paddock.agents._budget import Price
from paddock.agents._endpoint import MAX_OUTPUT_TOKENS, MAX_RETRIES, TIMEOUT_SECONDS, failure, missing, unusable
from paddock.agents._messages import Message, Reply, Role, ToolSpec
from paddock.errors import ModelFailedError


class AsyncModel(Protocol):
    """Anything that has a name, a price and `complete`. It keeps nothing between calls, so that many runs share one.

    Example:
        ```python
        class Echo:
            name, price = "echo", None

            async def complete(self, messages, tools, **limits):
                return Reply(message=Message(role=Role.ASSISTANT, text=messages[-1].text))

        print((await AsyncAgent(Echo()).run("hello", sandbox)).text)  # hello
        ```
    """

    @property
    def name(self) -> str:
        """The name in traces and errors."""
        ...

    @property
    def price(self) -> Price | None:
        """The price of its tokens. None: unknown, and then a budget can't limit money."""
        ...

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        max_tokens: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Reply:
        """Ask for the next message.

        Args:
            messages: The conversation so far.
            tools: The tools that the model may call.
            max_tokens: The longest answer, in tokens. None: the model's own limit.
            timeout_seconds: How long the answer may take. None: the model's own limit.

        Returns:
            The message, and the tokens that it cost.

        Raises:
            ModelFailedError: The endpoint gives none.

        Example:
            ```python
            reply = await model.complete([Message(role=Role.USER, text="Are you done?")], [])
            print(reply.message.text)  # It is done.
            ```
        """
        ...


class AsyncEndpoint:
    """The common part of the models below: limits, and errors of the SDK that become ours."""

    _api: ModuleType
    """Writes requests and reads replies."""

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
        self._max_output_tokens, self._timeout_seconds = max_output_tokens, timeout_seconds
        self._options = dict(options or {})
        try:
            sdk = self._sdk()
        except ImportError:
            raise missing(self._api.EXTRA) from None
        try:
            self._client = sdk(api_key=api_key, base_url=base_url, max_retries=max_retries, timeout=timeout_seconds)
        except Exception as error:  # of the SDK: no key
            raise unusable(self._api.EXTRA, error, self._api.VARIABLE) from None
        # Anthropic's SDK would report this only at the first request, after the whole setup.
        if not any(getattr(self._client, name, None) for name in ("api_key", "auth_token", "credentials")):
            raise unusable(self._api.EXTRA, "it has no key", self._api.VARIABLE)

    @staticmethod
    def _sdk() -> Any:
        """Return the SDK's class of clients."""
        raise NotImplementedError

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        max_tokens: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Reply:
        """Ask for the next message, within the shorter of both limits."""
        length = min(max_tokens or self._max_output_tokens, self._max_output_tokens)
        host = self._client.base_url.host
        fields = self._api.request(self.name, messages, tools, length, host) | self._options
        seconds = min(timeout_seconds or self._timeout_seconds, self._timeout_seconds)
        try:
            resource = attrgetter(self._api.RESOURCE)(self._client)
            answer = await resource.with_raw_response.create(**fields, timeout=seconds)
            body: bytes = answer.http_response.content
        except Exception as error:  # any error of the SDK or below it is the endpoint's answer
            raise failure(self.name, error, self._client.api_key) from error
        return self._api.reply(self.name, body)

    async def aclose(self) -> None:
        """Close its connections."""
        await self._client.close()


class AsyncOpenAIModel(AsyncEndpoint):
    """A model of OpenAI, or of a server with its chat completions, such as vLLM, llama.cpp or Ollama.

    It needs the SDK: `pip install 'paddock-sandbox[openai]'`.

    Args:
        name: The model's name at the endpoint.
        api_key: The key. None: the SDK takes OPENAI_API_KEY.
        base_url: The endpoint. None: the SDK takes OPENAI_BASE_URL, or OpenAI's.
        price: The price of its tokens, for a budget of money.
        max_output_tokens: The longest answer, in tokens.
        timeout_seconds: How long an answer may take.
        max_retries: How often the SDK repeats a failed request.
        options: Fields of each request, such as `{"temperature": 0.7}`.

    Raises:
        NotConfiguredError: The SDK or the key is missing.

    Example:
        ```python
        model = AsyncOpenAIModel("gpt-5", api_key="sk-...", price=Price(input_usd=1.25, output_usd=10))
        agent = AsyncAgent(model, budget=Budget(max_usd=0.5))
        await model.aclose()
        ```
    """

    _api = _openai

    @staticmethod
    def _sdk() -> Any:
        from openai import AsyncOpenAI

        return AsyncOpenAI


class AsyncAnthropicModel(AsyncEndpoint):
    """A model behind Anthropic's messages API.

    It needs the SDK: `pip install 'paddock-sandbox[anthropic]'`.

    Args:
        name: The model's name at the endpoint.
        api_key: The key. None: the SDK takes ANTHROPIC_API_KEY.
        base_url: The endpoint. None: the SDK takes ANTHROPIC_BASE_URL, or Anthropic's.
        price: The price of its tokens, for a budget of money.
        max_output_tokens: The longest answer, in tokens.
        timeout_seconds: How long an answer may take.
        max_retries: How often the SDK repeats a failed request.
        options: Fields of each request, such as `{"temperature": 0.7}`.

    Raises:
        NotConfiguredError: The SDK or the key is missing.

    Example:
        ```python
        model = AsyncAnthropicModel("claude-sonnet-4-5", api_key="sk-...", options={"temperature": 0})
        agent = AsyncAgent(model)
        await model.aclose()
        ```
    """

    _api = _anthropic

    @staticmethod
    def _sdk() -> Any:
        from anthropic import AsyncAnthropic

        return AsyncAnthropic


class AsyncScriptModel:
    """A model for tests, demonstrations, and runs without a model.

    It gives its replies in their order, in each run from the start. After the last one it fails.

    Args:
        replies: The replies.
        name: The name in traces and errors.
        price: The price of its tokens, for a budget of money.

    Example:
        ```python
        call = ToolCall(id="1", name="bash", arguments='{"command": "ls"}')
        first = Reply(message=Message(role=Role.ASSISTANT, calls=(call,)))
        model = AsyncScriptModel([first, Reply(message=Message(role=Role.ASSISTANT, text="done"))])
        print((await AsyncAgent(model).run("List the files", sandbox)).steps)  # 2
        ```
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
        """Return the next reply.

        Args:
            messages: The conversation so far, which says how many replies it has had.
            tools: Not used.
            max_tokens: Not used.
            timeout_seconds: Not used.

        Returns:
            The reply.

        Raises:
            ModelFailedError: It has given all its replies.

        Example:
            ```python
            model = AsyncScriptModel([Reply(message=Message(role=Role.ASSISTANT, text="done"))])
            print((await model.complete([], [])).message.text)  # done
            ```
        """
        answers = sum(message.role is Role.ASSISTANT for message in messages)
        if answers >= len(self._replies):
            raise ModelFailedError(f"{self.name} has no more than {len(self._replies)} replies")
        return self._replies[answers]
