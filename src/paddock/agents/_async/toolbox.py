"""The tools of a model, in a sandbox. The model sees every failure there."""

from __future__ import annotations

import math
from posixpath import join

from paddock.agents._colours import awithin
from paddock.agents._messages import ToolCall, ToolSpec
from paddock.agents._tools import (
    BadCall,
    Bash,
    EditText,
    Observation,
    ReadText,
    ReadWhole,
    RunCode,
    WriteText,
    cut,
    of_command,
    read_call,
    tool_specs,
)
from paddock.client import AsyncSandbox
from paddock.errors import GuestLostError, InvalidArgumentError, RequestError, SandboxDiedError, SandboxError

_READ_BYTES = 1 << 20


class AsyncToolbox:
    """The tools of a sandbox, for any framework: `specs` describes them to a model, `call` runs one.

    Args:
        sandbox: Where they run.
        directory: Where commands run and relative paths start.
        step_timeout_seconds: The longest that one command may take.
        observation_chars: How much of a file, and of each stream of a command, an observation shows. At least 100.

    Raises:
        InvalidArgumentError: A number isn't possible.

    Example:
        ```python
        toolbox = AsyncToolbox(sandbox)
        print([spec.name for spec in toolbox.specs][:2])  # ['run_code', 'bash']
        observation = await toolbox.call("bash", '{"command": "echo hello"}')
        print(observation.text)  # … hello
        ```
    """

    def __init__(
        self,
        sandbox: AsyncSandbox,
        *,
        directory: str = "/workspace",
        step_timeout_seconds: float = 120.0,
        observation_chars: int = 4000,
    ) -> None:
        if not (step_timeout_seconds > 0 and observation_chars >= 100):
            raise InvalidArgumentError("step_timeout_seconds has to be more than 0, observation_chars at least 100")
        self._sandbox = sandbox
        self._directory = directory
        self._seconds = step_timeout_seconds
        self._chars = observation_chars

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as a model reads them, with JSON schemas."""
        return tool_specs()

    async def call(self, name: str, arguments: str) -> Observation:
        """Run a tool. A mistake of the model is an observation that `failed`, not an exception.

        Args:
            name: The tool's name, such as `bash`.
            arguments: JSON, as the model wrote it.

        Returns:
            The text for the model.

        Raises:
            SandboxDiedError: The sandbox has ended.
            PlatformError: paddock or the machine failed.

        Example:
            ```python
            observation = await AsyncToolbox(sandbox).call("run_code", '{"code": "print(6 * 7)"}')
            print(observation.failed)  # False
            ```
        """
        return await self.observe(ToolCall(id="", name=name, arguments=arguments))

    async def observe(self, call: ToolCall, *, seconds_left: float | None = None) -> Observation:
        """Run a tool as `call` does, within the rest of a budget.

        Args:
            call: The call that the model asks for.
            seconds_left: What is left of the budget. None: no limit but the step's.

        Returns:
            The text for the model.

        Raises:
            SandboxDiedError: The sandbox has ended.
            PlatformError: paddock or the machine failed.

        Example:
            ```python
            call = ToolCall(id="1", name="bash", arguments='{"command": "sleep 60"}')
            observation = await AsyncToolbox(sandbox).observe(call, seconds_left=0.2)
            print(observation.failed)  # True
            ```
        """
        seconds = self._seconds if seconds_left is None else max(0.1, min(self._seconds, seconds_left))
        try:
            tool = read_call(call)
            match tool:
                case RunCode(code=code, timeout_seconds=wanted):
                    return await self._command(["python3", "-"], _bounded(wanted, seconds), code)
                case Bash(command=command, timeout_seconds=wanted):
                    return await self._command(["/bin/bash", "-c", command], _bounded(wanted, seconds), None)
                case _:
                    # A command has its own deadline. A file may be a pipe without a writer.
                    return await awithin(seconds, self._file, tool)
        except BadCall as error:
            return Observation(text=str(error), failed=True)
        except TimeoutError:
            return Observation(text=f"nothing came of it in {seconds:g} s", failed=True)
        except SandboxDiedError:
            raise
        except GuestLostError as error:
            return Observation(text=f"{error}; what ran in the sandbox may have been killed", failed=True)
        except (SandboxError, RequestError) as error:
            return Observation(text=cut(str(error), self._chars), failed=True)

    async def _command(self, argv: list[str], seconds: float, code: str | None) -> Observation:
        result = await self._sandbox.exec(
            argv,
            cwd=self._directory,
            input=code,
            timeout_seconds=seconds,
            capture_bytes=self._chars,
        )
        return of_command(result, self._chars)

    async def _file(self, tool: ReadText | WriteText | EditText | ReadWhole) -> Observation:
        files = self._sandbox.filesystem
        match tool:
            case ReadText():
                text = await self._text(tool.path)
                return Observation(text=cut(_numbered(text, tool), self._chars))
            case WriteText():
                info = await files.write(join(self._directory, tool.path), tool.content)
                return Observation(text=f"{tool.path}: {info.size_bytes} bytes written")
            case EditText():
                text = await self._text(tool.path)
                found = text.count(tool.old) if tool.old else 0
                if found != 1:
                    raise BadCall(f"`old` occurs {found} times in {tool.path}: it has to occur exactly once")
                await files.write(join(self._directory, tool.path), text.replace(tool.old, tool.new))
                return Observation(text=f"{tool.path}: replaced")
            case ReadWhole():
                return await self._output(tool)

    async def _text(self, path: str) -> str:
        """Read a file as text. Raises BadCall if the model couldn't see it and write it back unchanged."""
        data = await self._sandbox.filesystem.read(join(self._directory, path), max_bytes=_READ_BYTES)
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise BadCall(f"{path} is not UTF-8 text: look at it with a command") from None

    async def _output(self, tool: ReadWhole) -> Observation:
        if tool.offset < 0:
            raise BadCall("`offset` counts from 0")
        left, part = tool.offset, b""
        async with self._sandbox.output(tool.exec, tool.stream) as reader:
            while data := await reader.read(1 << 16):
                part += data[left:]
                left = max(0, left - len(data))
                if len(part) > self._chars:
                    break
        more = len(part) > self._chars
        part = part[: self._chars]
        end = f"more follows at offset {tool.offset + len(part)}" if more else "that is its end"
        return Observation(text=f"{part.decode('utf-8', 'replace')}\n[{end}]")


def _bounded(wanted: float | None, seconds: float) -> float:
    if wanted is None:
        return seconds
    if not (wanted > 0 and math.isfinite(wanted)):
        raise BadCall(f"timeout_seconds is {wanted}: it must be more than 0")
    return min(wanted, seconds)


def _numbered(text: str, tool: ReadText) -> str:
    if tool.first_line < 1 or tool.lines < 1:
        raise BadCall("`first_line` and `lines` count from 1")
    lines = text.splitlines()
    shown = lines[tool.first_line - 1 : tool.first_line - 1 + tool.lines]
    body = "\n".join(f"{number:6}  {line}" for number, line in enumerate(shown, tool.first_line))
    after = len(lines) - (tool.first_line - 1 + len(shown))
    if tool.first_line > 1 or after > 0:
        body += f"\n[the file has {len(lines)} lines]"
    return body or "[the file is empty]"
