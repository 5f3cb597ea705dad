"""Replies and projects for the tests of the loop."""

from __future__ import annotations

import json
from pathlib import Path

from paddock.agents import Message, Reply, Role, Tokens, ToolCall

TASK = "def add(a, b):\n    return a - b\n"
TESTS = "from task import add\n\ndef test_sum(): assert add(1, 2) == 3\ndef test_zero(): assert add(0, 0) == 0\n"
GOOD = "--- a/task.py\n+++ b/task.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n"
BAD = GOOD.replace("a + b", "a * b")
MISFIT = GOOD.replace("a - b", "a / b")


TOKENS = Tokens(input=10, output=5)


def calls(*wanted: tuple[str, object], text: str = "", tokens: Tokens | None = TOKENS) -> Reply:
    """Each a tool's name and its arguments; a text instead of a dict goes as it is."""
    made = tuple(
        ToolCall(id=f"c{n}", name=name, arguments=given if isinstance(given, str) else json.dumps(given))
        for n, (name, given) in enumerate(wanted)
    )
    return Reply(message=Message(role=Role.ASSISTANT, text=text, calls=made), tokens=tokens)


def bash(command: str, **more: object) -> Reply:
    return calls(("bash", {"command": command, **more}))


def says(text: str, tokens: Tokens | None = TOKENS) -> Reply:
    return Reply(message=Message(role=Role.ASSISTANT, text=text), tokens=tokens)


def project(directory: Path) -> Path:
    """A small one, with a bug."""
    directory.mkdir(exist_ok=True)
    (directory / "task.py").write_text(TASK)
    (directory / "test_task.py").write_text(TESTS)
    return directory
