"""Replies from a file: `script:FILE` on the command line.

JSON: a list of replies, or a list of such lists, one for each attempt (the last ones start again from the first).
A reply is `{"text": "...", "calls": [{"name": "bash", "arguments": {"command": "ls"}}], "tokens": [input, output]}`;
all of it may be left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from paddock.errors import InvalidArgument

from ._budget import Tokens
from ._messages import Message, Reply, Role, ToolCall


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] | str = {}
    """A text goes as it is: to be wrong on purpose."""


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    text: str = ""
    calls: list[_Call] = []
    tokens: tuple[int, int] = (0, 0)


def read_script(path: str) -> list[list[Reply]]:
    """The replies of each attempt. InvalidArgument."""
    try:
        lines = msgspec.json.decode(Path(path).read_bytes(), type=list[_Line | list[_Line]])
    except OSError as error:
        raise InvalidArgument(f"the script {path} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise InvalidArgument(f"{path} is no script: {error}", hint='[{"text": "done"}]') from None
    if all(isinstance(line, _Line) for line in lines):
        return [[_reply(line, number) for number, line in enumerate(lines) if isinstance(line, _Line)]]
    scripts = [line for line in lines if isinstance(line, list)]
    if len(scripts) != len(lines):
        raise InvalidArgument(f"{path} mixes replies and lists of replies")
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
