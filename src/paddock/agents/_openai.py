"""Messages as the chat completions API writes them, and its answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from paddock.errors import ModelFailedError

from ._budget import Tokens
from ._endpoint import arguments_object, read_answer
from ._messages import Message, Reply, Role, ToolCall, ToolSpec


class _Function(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class _Call(msgspec.Struct):
    id: str
    function: _Function


class _ReplyMessage(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    message: _ReplyMessage
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


EXTRA, VARIABLE, RESOURCE = "openai", "OPENAI_API_KEY", "chat.completions"


def request(
    model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], max_tokens: int, host: str
) -> dict[str, Any]:
    """Return the body of a request. Newer models of OpenAI refuse the field name that other servers use."""
    fields: dict[str, Any] = {
        "model": model,
        "messages": [written for message in messages for written in _written(message)],
        "max_completion_tokens" if host == "api.openai.com" else "max_tokens": max_tokens,
    }
    if tools:
        fields["tools"] = [{"type": "function", "function": msgspec.to_builtins(tool)} for tool in tools]
    return fields


def reply(model: str, body: bytes) -> Reply:
    completion = read_answer(model, body, _Completion)
    if not completion.choices:
        raise ModelFailedError(f"{model} answered without a choice", hint="ask again")
    choice = completion.choices[0]
    calls = [
        ToolCall(id=call.id, name=call.function.name, arguments=_text(call.function.arguments))
        for call in choice.message.tool_calls or ()
    ]
    return Reply(
        message=Message(role=Role.ASSISTANT, text=choice.message.content or "", calls=tuple(calls)),
        tokens=_tokens(completion.usage),
        cut=choice.finish_reason == "length",
    )


def _written(message: Message) -> Iterator[dict[str, Any]]:
    if message.role is Role.TOOL:
        for result in message.results:
            yield {"role": "tool", "tool_call_id": result.call, "content": result.text}
    elif message.calls:
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(arguments_object(call.arguments))},
            }
            for call in message.calls
        ]
        yield {"role": "assistant", "content": message.text or None, "tool_calls": calls}
    else:
        yield {"role": message.role.value, "content": message.text}


def _text(arguments: str | dict[str, Any] | None) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {})


def _tokens(usage: _Usage | None) -> Tokens | None:
    if usage is None:
        return None
    details = usage.prompt_tokens_details
    cached = (details.cached_tokens if details is not None else None) or 0
    return Tokens(input=usage.prompt_tokens, output=usage.completion_tokens, cached=cached)
