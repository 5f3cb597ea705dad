"""What goes to a model, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from ._budget import Tokens


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """`arguments` is what the model wrote: JSON, if it is lucky."""

    id: str
    name: str
    arguments: str


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    call: str
    text: str
    failed: bool = False


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """`calls` are the assistant's; a tool's message holds one `results` entry for each call before it."""

    role: Role
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """`cut`: it reached its greatest length. `tokens=None`: the endpoint does not say."""

    message: Message
    tokens: Tokens | None = None
    cut: bool = False


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """As a model is told of a tool: `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]
