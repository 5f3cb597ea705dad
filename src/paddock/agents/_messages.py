"""Messages to and from a model, the result of a run, and scripts that stand in for a model."""

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
    """A tool that the model wants to call. `arguments` is its text, which should be JSON.

    Example:
        ```python
        call = ToolCall(id="1", name="bash", arguments='{"command": "ls"}')
        ```
    """

    id: str
    name: str
    arguments: str


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a ToolCall. `call` is its id.

    Example:
        ```python
        result = ToolResult(call="1", text="README.md")
        ```
    """

    call: str
    text: str
    failed: bool = False


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message. Only the assistant's have `calls`. A tool's message holds one result for each call before it.

    Example:
        ```python
        question = Message(role=Role.USER, text="Are you done?")
        answer = Message(role=Role.TOOL, results=(ToolResult(call="1", text="README.md"),))
        ```
    """

    role: Role
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a model. `cut`: it reached its greatest length. `tokens=None`: the endpoint doesn't say.

    Example:
        ```python
        reply = Reply(message=Message(role=Role.ASSISTANT, text="done"), tokens=Tokens(input=10, output=1))
        ```
    """

    message: Message
    tokens: Tokens | None = None
    cut: bool = False


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as a model reads it. `parameters` is a JSON schema.

    Example:
        ```python
        (bash,) = [spec for spec in Toolbox(sandbox).specs if spec.name == "bash"]
        print(bash.parameters["required"])  # ['command']
        ```
    """

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
    """The end of a run: why it ended, the last answer, and the cost. `error` says more where `stop` is a failure.

    Example:
        ```python
        run = Agent(model).run("Make the tests pass", sandbox)
        print(run.ok, run.stop, run.tokens.total)  # True done 15
        ```
    """

    stop: Stop
    text: str = ""
    steps: int = 0
    tokens: Tokens = Tokens()
    usd: float | None = None
    """None: the price of the model is unknown."""
    seconds: float = 0.0
    error: str | None = None
    messages: tuple[Message, ...] = ()

    @property
    def ok(self) -> bool:
        """Tell whether the model finished, and `verify` agreed."""
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
    """Read the replies of a ScriptModel from a file.

    The file is JSON: a list of replies, or a list of such lists, one for each attempt. A reply is `{"text": "...",
    "calls": [{"name": "bash", "arguments": {"command": "ls"}}], "tokens": [input, output]}`. Each key is optional.

    Args:
        path: The file.

    Returns:
        A list of replies for each attempt.

    Raises:
        InvalidArgumentError: This program can't read the file, or it holds something else.

    Example:
        ```python
        (replies,) = read_script("script.json")
        model = ScriptModel(replies)
        ```
    """
    try:
        lines = msgspec.json.decode(Path(path).read_bytes(), type=list[_Line | list[_Line]])
    except OSError as error:
        raise InvalidArgumentError(f"the script {path} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise InvalidArgumentError(f"{path} is not a script of replies: {error}", hint='[{"text": "done"}]') from None
    replies = [line for line in lines if isinstance(line, _Line)]
    scripts = [line for line in lines if isinstance(line, list)] or [replies]
    if len(scripts) != len(lines) and len(replies) != len(lines):
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
