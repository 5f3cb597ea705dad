"""A sandbox as the tests speak of it: short verbs over an Instance."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from paddock.backends.base import Instance, SandboxPlan
from paddock.model import (
    Action,
    ByteReader,
    ByteWriter,
    ExecHandle,
    ExecId,
    ExecSpec,
    ExitStatus,
    FileInfo,
    IdPrefix,
    ListFiles,
    ReadFile,
    StatFile,
    WriteFile,
    mint,
)

R = TypeVar("R")


class Finished(NamedTuple):
    status: ExitStatus
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        return self.out.decode().strip()


class Box:
    """One live sandbox and the plan it was made from."""

    def __init__(self, instance: Instance, plan: SandboxPlan) -> None:
        self.instance = instance
        self.plan = plan
        self._handles: list[ExecHandle] = []

    @property
    def id(self) -> str:
        return self.instance.id

    async def start(self, *argv: str, background: bool = False, **spec: Any) -> ExecHandle:
        """A running command; keywords are those of ExecSpec."""
        id = ExecId(mint(IdPrefix.EXEC))
        handle = await self.instance.start(ExecSpec(argv=argv, **spec), id=id, background=background)
        self._handles.append(handle)
        return handle

    async def let_go(self) -> None:
        """Of what a test has not let go of by itself."""
        for handle in self._handles:
            await handle.aclose()

    async def start_python(self, code: str, *arguments: str, background: bool = False, **spec: Any) -> ExecHandle:
        return await self.start("python3", "-I", "-S", "-c", code, *arguments, background=background, **spec)

    async def run(self, *argv: str, input: bytes | None = None, **spec: Any) -> Finished:
        """Starts, feeds, collects everything and waits."""
        handle = await self.start(*argv, **{"stdin": input is not None, **spec})
        return await finish(handle, input=input)

    async def sh(self, script: str, *arguments: str, input: bytes | None = None, **spec: Any) -> Finished:
        return await self.run("sh", "-c", script, "sh", *arguments, input=input, **spec)

    async def python(self, code: str, *arguments: str, input: bytes | None = None, **spec: Any) -> Finished:
        """Isolated and without site: what is installed inside changes nothing."""
        return await self.run("python3", "-I", "-S", "-c", code, *arguments, input=input, **spec)

    async def file(self, kind: type[Action[R]], **fields: Any) -> R:
        """A file action on this sandbox."""
        build = cast("Callable[..., Action[R]]", kind)  # `Action` itself has no fields
        return await self.instance.file(build(sandbox=self.id, **fields))

    async def read(self, path: str, **fields: Any) -> bytes:
        return await drain(await self.file(ReadFile, path=path, **fields))

    async def write(self, path: str, data: bytes, **fields: Any) -> FileInfo:
        info = await pour(await self.file(WriteFile, path=path, **fields), data)
        assert info is not None, "aclose() of a file's writer says what the file became"
        return info

    async def stat(self, path: str, **fields: Any) -> FileInfo:
        return await self.file(StatFile, path=path, **fields)

    async def names(self, path: str = ".", **fields: Any) -> list[str]:
        return [info.name for info in await self.file(ListFiles, path=path, **fields)]

    @property
    def workdir(self) -> str:
        """The template's working directory as paths in requests name it."""
        return self.plan.template.workdir

    async def pwd(self) -> str:
        """The same as commands see it; a backend without isolation may have it elsewhere."""
        return (await self.run("pwd")).out.decode().removesuffix("\n")

    async def matching(self, marker: str) -> list[int]:
        """Processes, as seen from inside, that have `marker` among their arguments; the searcher has it in stdin."""
        finished = await self.python(_FIND_PROCESSES, input=marker.encode())
        return [int(pid) for pid in finished.text.split()]


_FIND_PROCESSES = """
import os, sys
marker = sys.stdin.buffer.read()
for pid in filter(str.isdigit, os.listdir('/proc')):
    try:
        with open(f'/proc/{pid}/cmdline', 'rb') as file:
            if marker in file.read(): print(pid)
    except OSError:
        pass
"""


async def finish(handle: ExecHandle, *, input: bytes | None = None) -> Finished:
    """Feeds and collects a running command to its end, all streams at once, and lets go of it."""
    try:
        async with asyncio.TaskGroup() as group:
            out = group.create_task(_drain_if_any(handle.stdout))
            err = group.create_task(_drain_if_any(handle.stderr))
            if input is not None:
                assert handle.stdin is not None, "stdin=True gives a writer"
                group.create_task(_feed(handle.stdin, input))
        return Finished(await handle.wait(), out.result(), err.result())
    finally:
        await handle.aclose()


async def _drain_if_any(reader: ByteReader | None) -> bytes:
    return b"" if reader is None else await drain(reader)


async def _feed(writer: ByteWriter, data: bytes) -> None:
    try:
        await writer.write(data)
    except BrokenPipeError:
        pass  # it did not want all of it, as `head` does not
    finally:
        await writer.aclose()


async def drain(reader: ByteReader) -> bytes:
    """Everything up to the end, then closes."""
    parts: list[bytes] = []
    try:
        while part := await reader.read():
            parts.append(part)
    finally:
        await reader.aclose()
    return b"".join(parts)


async def read_until(reader: ByteReader, wanted: bytes) -> bytes:
    """What came up to and including `wanted`, and perhaps more."""
    seen = b""
    while wanted not in seen:
        part = await reader.read()
        assert part, f"the stream ended before {wanted!r} came; it had {seen!r}"
        seen += part
    return seen


async def pour(writer: ByteWriter, data: bytes | Sequence[bytes]) -> FileInfo | None:
    """Writes all and ends the stream. A refusal is raised by aclose, which knows the reason, not by write."""
    pieces = [data] if isinstance(data, bytes) else data
    try:
        for piece in pieces:
            await writer.write(piece)
    except BrokenPipeError:
        pass
    return await writer.aclose()
