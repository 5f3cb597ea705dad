"""A command that runs, and the bytes that flow to and from it."""

from __future__ import annotations

from paddock.client._command import seconds
from paddock.errors import InvalidStateError, ResourceExhaustedError
from paddock.model import PtySize

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType
    from typing import TypeVar

    from paddock.client._command import Duration
    from paddock.model import ExitStatus
    from paddock.model.streams import ByteReader, ByteWriter, HeldExecHandle

    S = TypeVar("S")

CHUNK_BYTES = 1 << 20
MOST_BYTES = 256 << 20
"""What is read of one stream at once, unless the caller says how much."""


class AsyncReader:
    """Bytes as they come. What is not read blocks the writer, so nothing is lost and nothing piles up.

    ```python
    async for chunk in process.stdout:
        ...
    ```
    """

    def __init__(self, handle: ByteReader) -> None:
        self._handle = handle

    async def read(self, size: int | None = None) -> bytes:
        """Return at most `size` bytes as soon as any are there. Without `size`, return all bytes to the end.

        Returns:
            b"" at the end.

        Raises:
            ResourceExhaustedError: No `size` was given, and more than 256 MiB came.
        """
        return await self.read_all() if size is None else await self._handle.read(size)

    async def read_all(self, *, max_bytes: int = MOST_BYTES) -> bytes:
        """Return all bytes to the end.

        Raises:
            ResourceExhaustedError: There are more than `max_bytes`. What was read is lost.
        """
        whole = bytearray()
        while data := await self._handle.read(CHUNK_BYTES):
            whole += data
            if len(whole) > max_bytes:
                raise ResourceExhaustedError(
                    f"the stream holds more than {max_bytes} bytes", hint="read(size) in a loop, or max_bytes="
                )
        return bytes(whole)

    async def lines(self, *, encoding: str = "utf-8", max_line_bytes: int = CHUNK_BYTES) -> AsyncIterator[str]:
        """Lines without their ends. A longer one comes in pieces; what is invalid is replaced."""
        rest = b""
        while data := await self.read(CHUNK_BYTES):
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                for start in range(0, len(line) or 1, max_line_bytes):
                    yield line[start : start + max_line_bytes].decode(encoding, "replace")
            while len(rest) >= max_line_bytes:
                yield rest[:max_line_bytes].decode(encoding, "replace")
                rest = rest[max_line_bytes:]
        if rest:
            yield rest.decode(encoding, "replace")

    async def aclose(self) -> None:
        await self._handle.aclose()

    def __aiter__(self) -> AsyncReader:
        return self

    async def __anext__(self) -> bytes:
        data = await self.read(CHUNK_BYTES)
        if not data:
            raise StopAsyncIteration
        return data

    async def __aenter__(self) -> AsyncReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class AsyncWriter:
    """Bytes going in. As a context manager: an exception gives the stream up instead of ending it well."""

    def __init__(self, handle: ByteWriter) -> None:
        self._handle = handle

    async def write(self, data: str | bytes) -> None:
        """Wait until all of it was taken. Text is encoded as UTF-8. BrokenPipeError if the other side closed."""
        view = memoryview(data.encode() if isinstance(data, str) else data).cast("B")
        if len(view) <= CHUNK_BYTES:
            await self._handle.write(bytes(view))
            return
        for start in range(0, len(view), CHUNK_BYTES):
            await self._handle.write(bytes(view[start : start + CHUNK_BYTES]))

    async def aclose(self) -> None:
        """End the stream. A file is in place when this returns."""
        await self._handle.aclose()

    async def __aenter__(self) -> AsyncWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.aclose()
        else:
            await self._handle.abort()


class AsyncProcess:
    """A started command.

    At the end of its `with` block paddock kills a foreground command with everything that it started. A background
    one lives on. Read the output of a foreground command before you `wait`: it stops when its pipes are full. A
    background one prints to files, and needs no reader.
    """

    def __init__(self, handle: HeldExecHandle) -> None:
        self._handle = handle
        self._status: ExitStatus | None = None
        self._stdin = None if handle.stdin is None else AsyncWriter(handle.stdin)
        self._stdout = None if handle.stdout is None else AsyncReader(handle.stdout)
        self._stderr = None if handle.stderr is None else AsyncReader(handle.stderr)

    @property
    def id(self) -> str:
        """For `attach`, if it is a background command."""
        return self._handle.id

    @property
    def pid(self) -> int:
        """Inside the sandbox."""
        return self._handle.pid

    @property
    def stdin(self) -> AsyncWriter:
        return _present(self._stdin, "stdin", "start it with stdin=True")

    @property
    def stdout(self) -> AsyncReader:
        return _present(self._stdout, "stdout", "attach to it by its id")

    @property
    def stderr(self) -> AsyncReader:
        return _present(self._stderr, "stderr", "with a terminal it is part of stdout")

    @property
    def has_stderr(self) -> bool:
        return self._stderr is not None

    @property
    def status(self) -> ExitStatus | None:
        """How it ended, once `wait` has said so."""
        return self._status

    @property
    def exit_code(self) -> int | None:
        """The code, or 128 + signal, once `wait` has said so."""
        return None if self._status is None else self._status.exit_code

    async def wait(self, timeout: Duration | None = None) -> ExitStatus:
        """Wait until the command has ended, and return how.

        Args:
            timeout: Seconds, a timedelta or a text such as `"5m"`. None waits as long as the command runs.

        Raises:
            TimeoutError: The command still runs then. It goes on, and you can wait again.
        """
        self._status = await self._handle.wait(seconds(timeout, "timeout"))
        return self._status

    async def communicate(self, input: str | bytes | None = None) -> tuple[bytes, bytes]:
        """Write `input`, close stdin, read both outputs to their end, and wait.

        Returns:
            Its stdout and its stderr. `exit_code` has a value afterwards.

        Raises:
            InvalidStateError: There is `input`, and `start` had no stdin=True.
            ResourceExhaustedError: One output has more than 256 MiB. paddock kills the command.
        """
        from paddock.client._blocking import atogether  # only who waits for both outputs needs threads

        if input is not None:
            _present(self._stdin, "stdin", "start it with stdin=True")
        printed = [b"", b""]

        async def feed() -> None:
            if self._stdin is not None:
                try:
                    if input:
                        await self._stdin.write(input)
                    await self._stdin.aclose()
                except BrokenPipeError:  # it reads no more
                    pass

        async def drain(number: int, stream: AsyncReader | None) -> None:
            if stream is not None:
                printed[number] = await stream.read_all()

        await atogether(self.kill, feed, lambda: drain(0, self._stdout), lambda: drain(1, self._stderr))
        await self.wait()
        return printed[0], printed[1]

    async def signal(self, number: int) -> None:
        """To the command and its process group."""
        await self._handle.signal(number)

    async def kill(self) -> None:
        """SIGKILL to everything that the command started, daemons included."""
        await self._handle.kill()

    async def resize(self, *, rows: int, columns: int) -> None:
        await self._handle.resize(PtySize(rows=rows, columns=columns))

    async def aclose(self) -> None:
        """Lets go: a foreground command is killed, a background one lives on."""
        await self._handle.aclose()

    async def __aenter__(self) -> AsyncProcess:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        how = "runs" if self._status is None else f"ended with {self._status.exit_code}"
        return f"<{type(self).__name__} {self.id} pid {self.pid} {how}>"


def _present(stream: S | None, name: str, hint: str) -> S:
    if stream is None:
        raise InvalidStateError(f"the command has no {name} here", hint=hint)
    return stream
