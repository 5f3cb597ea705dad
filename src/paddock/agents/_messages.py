"""Messages to a model, its replies, and the result of an agent's run.

`script:FILE` on the command line reads replies from a file. The file is JSON: a list of replies, or a list of such
lists. Then each attempt gets one of them, and further attempts start again from the first. A reply is `{"text": "...",
"calls": [{"name": "bash", "arguments": {"command": "ls"}}], "tokens": [input, output]}`. All of its keys are optional.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from paddock.errors import InvalidArgumentError

from ._budget import Stop, Tokens


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call. `arguments` is the text of the model, which should be JSON."""

    id: str
    name: str
    arguments: str


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    call: str
    text: str
    failed: bool = False


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message. `calls` are the assistant's. A tool's message has one of `results` for each call before it."""

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
    """The description of a tool for a model. `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


SYSTEM = """\
You work in a disposable Linux computer through tools. The project is in {directory}. There is no network unless a \
command shows otherwise. Work in small steps, look at what happened, and check your work. What you see of long output \
is cut in its middle; read_output shows the rest. When you are done, answer without calling a tool.\
"""

CUT = "Your answer reached its greatest length and was cut off. Go on in smaller steps."


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run: the reason of its end, the model's last text, and the cost.

    `error` explains a `stop` that is a failure.
    """

    stop: Stop
    text: str = ""
    steps: int = 0
    tokens: Tokens = Tokens()
    usd: float | None = None
    """None: the price of the model isn't known."""
    seconds: float = 0.0
    error: str | None = None
    messages: tuple[Message, ...] = ()

    @property
    def ok(self) -> bool:
        return self.stop is Stop.DONE


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] | str = {}
    """A text goes as it is: to be wrong on purpose."""


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    text: str = ""
    calls: list[_Call] = []
    tokens: tuple[int, int] = (0, 0)


def read_script(path: str) -> list[list[Reply]]:
    """Return the replies of each attempt. InvalidArgument."""
    try:
        lines = msgspec.json.decode(Path(path).read_bytes(), type=list[_Line | list[_Line]])
    except OSError as error:
        raise InvalidArgumentError(f"the script {path} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise InvalidArgumentError(f"{path} is no script: {error}", hint='[{"text": "done"}]') from None
    if all(isinstance(line, _Line) for line in lines):
        return [[_reply(line, number) for number, line in enumerate(lines) if isinstance(line, _Line)]]
    scripts = [line for line in lines if isinstance(line, list)]
    if len(scripts) != len(lines):
        raise InvalidArgumentError(f"{path} mixes replies and lists of replies")
    return [[_reply(line, number) for number, line in enumerate(script)] for script in scripts]


def _reply(line: _Line, number: int) -> Reply:
    calls = [
        ToolCall(
            id=f"call_{number}_{index}",
            name=call.name,
            arguments=call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments),
        )
        for index, call in enumerate(line.calls)
    ]
    return Reply(
        message=Message(role=Role.ASSISTANT, text=line.text, calls=tuple(calls)),
        tokens=Tokens(input=line.tokens[0], output=line.tokens[1]),
    )
