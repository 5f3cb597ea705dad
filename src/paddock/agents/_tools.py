"""The fixed set of tools for a model, and the texts that describe their results.

paddock reads the model's calls strictly, and reports mistakes back to it. Observations have a size limit. They say how
much of the middle is missing, so the model never sees an incomplete text unmarked.
"""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from paddock.model import ExecResult, Output

from ._messages import ToolCall, ToolSpec


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a tool, as a model sees it.

    `failed`: the model made a mistake, or the tool didn't work. `exec` is the id of the command, if one ran.

    Example:
        ```python
        observation = Toolbox(sandbox).call("bash", '{"command": "exit 3"}')
        print(observation.failed)  # True
        ```
    """

    text: str
    failed: bool = False
    exec: str | None = None

    @property
    def digest(self) -> str:
        """The SHA-256 of the text, as `sha256:…`."""
        return digest(self.text)


def digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def cut(text: str, max_chars: int) -> str:
    """Return head and tail of a text, and between them the number of missing characters."""
    if len(text) <= max_chars:
        return text
    head, tail = max_chars - max_chars // 2, max_chars // 2
    return f"{text[:head]}\n[… {len(text) - head - tail} characters left out …]\n{text[len(text) - tail :]}"


def of_command(result: ExecResult, max_chars: int) -> Observation:
    """Describe the result of a command with `max_chars` of each stream.

    The command's capture has as many bytes. The sandbox keeps longer output whole, so the model can read the parts that
    are missing here.
    """
    text = result.observation(2 * max_chars)
    for name, stream in (("stdout", result.out), ("stderr", result.err)):
        if stream.omitted_bytes:
            text += f"\n[{_where(result, name, stream)}]"
    return Observation(text=text, failed=not result.ok, exec=result.id)


def _where(result: ExecResult, name: str, stream: Output) -> str:
    if stream.file is None:
        return f"the rest of {name} was not kept: it was more than the sandbox may print"
    return f'all {stream.total_bytes} bytes of {name}: read_output(exec="{result.id}", stream="{name}", offset=...)'


class BadCall(Exception):
    """The model's own mistake, in words for the model."""


class RunCode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Run Python code in a fresh interpreter, in the working directory. Print what you want to see."""

    tool: ClassVar = "run_code"
    code: str
    timeout_seconds: float | None = None


class Bash(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Run a shell command in the working directory. Each call is a new shell; files stay."""

    tool: ClassVar = "bash"
    command: str
    timeout_seconds: float | None = None


class ReadText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Read lines of a text file, with their numbers."""

    tool: ClassVar = "read_file"
    path: str
    first_line: int = 1
    lines: int = 400


class WriteText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Write a whole file. Missing directories are made."""

    tool: ClassVar = "write_file"
    path: str
    content: str


class EditText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replace a text that occurs exactly once in a file."""

    tool: ClassVar = "edit_file"
    path: str
    old: str
    new: str


class ReadWhole(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Read a part of a command's output that was left out of what you saw."""

    tool: ClassVar = "read_output"
    exec: str
    stream: Literal["stdout", "stderr"] = "stdout"
    offset: int = 0


Tool: TypeAlias = RunCode | Bash | ReadText | WriteText | EditText | ReadWhole

_KINDS: dict[str, type[Tool]] = {kind.tool: kind for kind in (RunCode, Bash, ReadText, WriteText, EditText, ReadWhole)}


def tool_specs() -> tuple[ToolSpec, ...]:
    return tuple(
        ToolSpec(name=name, description=kind.__doc__ or "", parameters=_schema(kind)) for name, kind in _KINDS.items()
    )


def read_call(call: ToolCall) -> Tool:
    """Decode a tool call. Raises BadCall with the mistake."""
    kind = _KINDS.get(call.name)
    if kind is None:
        raise BadCall(f"there is no tool {call.name[:100]!r}: there are {', '.join(_KINDS)}")
    try:
        return msgspec.json.decode(call.arguments or "{}", type=kind)
    except msgspec.ValidationError as error:
        raise BadCall(f"wrong arguments for {call.name}: {error}") from None
    except (msgspec.DecodeError, UnicodeEncodeError) as error:  # a lone surrogate isn't text
        raise BadCall(f"the arguments of {call.name} are not JSON: {error}") from None


def _schema(kind: type[Tool]) -> dict[str, Any]:
    """One object, without references: not every endpoint follows them."""
    (_, components) = msgspec.json.schema_components([kind])
    schema: dict[str, Any] = components[kind.__name__]
    return {key: value for key, value in schema.items() if key not in ("title", "description")}
