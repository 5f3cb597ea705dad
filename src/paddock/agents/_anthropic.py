"""Messages as the messages API writes them, and its answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from ._budget import Tokens
from ._endpoint import arguments_object, read_answer
from ._messages import Message, Reply, Role, ToolCall, ToolSpec


class _Block(msgspec.Struct):
    type: str
    text: str = ""
    id: str = ""
    name: str = ""
    input: Any = None


class _Usage(msgspec.Struct):
    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class _Answer(msgspec.Struct):
    content: list[_Block]
    stop_reason: str | None = None
    usage: _Usage | None = None


EXTRA, VARIABLE, RESOURCE = "anthropic", "ANTHROPIC_API_KEY", "messages"


def request(
    model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], max_tokens: int, host: str
) -> dict[str, Any]:
    system = "\n\n".join(message.text for message in messages if message.role is Role.SYSTEM)
    fields: dict[str, Any] = {
        "model": model,
        "max_tokens": max_tokens,
        "messages": [_written(message) for message in messages if message.role is not Role.SYSTEM],
    }
    if system:
        fields["system"] = system
    if tools:
        fields["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}
            for tool in tools
        ]
    return fields


def reply(model: str, body: bytes) -> Reply:
    answer = read_answer(model, body, _Answer)
    calls = [
        ToolCall(id=block.id, name=block.name, arguments=json.dumps(block.input))
        for block in answer.content
        if block.type == "tool_use"
    ]
    text = "".join(block.text for block in answer.content if block.type == "text")
    return Reply(
        message=Message(role=Role.ASSISTANT, text=text, calls=tuple(calls)),
        tokens=_tokens(answer.usage),
        cut=answer.stop_reason == "max_tokens",
    )


def _written(message: Message) -> dict[str, Any]:
    if message.role is Role.TOOL:
        results = [
            {"type": "tool_result", "tool_use_id": result.call, "content": result.text, "is_error": result.failed}
            for result in message.results
        ]
        return {"role": "user", "content": results}
    blocks: list[dict[str, Any]] = []
    if message.text.strip() or not message.calls:
        blocks.append({"type": "text", "text": message.text if message.text.strip() else "(nothing)"})
    blocks += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_object(call.arguments)}
        for call in message.calls
    ]
    return {"role": message.role.value, "content": blocks}


def _tokens(usage: _Usage | None) -> Tokens | None:
    if usage is None:
        return None
    cached = usage.cache_read_input_tokens or 0
    written = usage.cache_creation_input_tokens or 0
    return Tokens(input=usage.input_tokens + cached + written, output=usage.output_tokens, cached=cached)
