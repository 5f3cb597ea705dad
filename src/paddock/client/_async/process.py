"""A command that runs, and the bytes that flow to and from it."""

from __future__ import annotations

from paddock.client._command import seconds
from paddock.errors import DaemonLostError, DaemonUnavailableError, InvalidStateError, ResourceExhaustedError
from paddock.model import ExitStatus, PtySize, codec

from .handles import AsyncBlock, Command, Incoming, Outgoing, decoded, streams_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType
    from typing import Any, TypeVar

    from paddock.client._command import Duration
    from paddock.model import Action, FileInfo
    from paddock.wire import Frame

    from .calls import AsyncCalls
    from .handles import Stream

    S = TypeVar("S")

CHUNK_BYTES = 1 << 20
MOST_BYTES = 256 << 20
"""How much `read_all` takes, unless the caller says it."""


class AsyncReader(Incoming):
    """Bytes as they come. Bytes that you don't read block the writer: it loses none.

    Iterate over it, or call its methods. It is `process.stdout`, or an open file.

    Example:
        ```python
        async with await sandbox.start("seq 1000") as process:
            async for chunk in process.stdout:
                print(len(chunk))
        ```
    """

    async def read(self, size: int | None = None) -> bytes:
        """Return some bytes as soon as there are any, or all to the end without `size`.

        Args:
            size: At most so many bytes. None: all bytes to the end.

        Returns:
            The bytes; b"" at the end.

        Raises:
            ResourceExhaustedError: More than 256 MiB came, and you gave no `size`.
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            async with await sandbox.files.open("/etc/passwd") as file:
                print((await file.read(5)).decode())  # root:
            ```
        """
        return await self.read_all() if size is None else await self._receive(size)

    async def read_all(self, *, max_bytes: int = MOST_BYTES) -> bytes:
        """Read to the end.

        Args:
            max_bytes: Raise if there are more.

        Returns:
            All bytes.

        Raises:
            ResourceExhaustedError: There are more than `max_bytes`. It drops the bytes until then.
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            async with await sandbox.start("seq 3") as process:
                print((await process.stdout.read_all()).decode())  # 1 2 3
            ```
        """
        whole = bytearray()
        while data := await self._receive(CHUNK_BYTES):
            whole += data
            if len(whole) > max_bytes:
                raise ResourceExhaustedError(
                    f"the stream holds more than {max_bytes} bytes", hint="read(size) in a loop, or max_bytes="
                )
        return bytes(whole)

    async def lines(self, *, encoding: str = "utf-8", max_line_bytes: int = CHUNK_BYTES) -> AsyncIterator[str]:
        """Read to the end, line by line.

        Args:
            encoding: The text's encoding. Bytes that it can't decode become `�`.
            max_line_bytes: A longer line comes in pieces of this size.

        Returns:
            An iterator over the lines, without their ends.

        Raises:
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            async with await sandbox.start("make test; echo done") as process:
                async for line in process.stdout.lines():
                    print(line)
            ```
        """
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
        """Stop reading.

        Example:
            ```python
            file = await sandbox.files.open("/etc/passwd")
            await file.aclose()
            ```
        """
        await super().aclose()

    def __aiter__(self) -> AsyncReader:
        return self

    async def __anext__(self) -> bytes:
        data = await self.read(CHUNK_BYTES)
        if not data:
            raise StopAsyncIteration
        return data


class AsyncWriter(Outgoing):
    """Bytes that go in: `process.stdin`, or an open file.

    A `with` block closes it at its end. If the block raises, a file stays as it was.

    Example:
        ```python
        async with await sandbox.files.open("notes.txt", "wb") as file:
            await file.write("first line")
        ```
    """

    async def write(self, data: str | bytes) -> None:
        """Write all of it, and wait until the other side has taken it.

        Args:
            data: Bytes, or a text, which goes as UTF-8.

        Raises:
            BrokenPipeError: The other side reads no more.
            FileError: The file can't hold it, such as on a full disk.
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            async with await sandbox.start("sort", stdin=True) as process:
                await process.stdin.write("b")
                await process.stdin.aclose()
                print(await process.stdout.read())
            ```
        """
        await self._send(data.encode() if isinstance(data, str) else data)

    async def aclose(self) -> FileInfo | None:
        """End the stream. A file is in place when this returns.

        Returns:
            Size, permissions and owner of the file. None for a command's stdin, and if it was closed before.

        Raises:
            FileError: The user can't write the file.

        Example:
            ```python
            file = await sandbox.files.open("notes.txt", "ab")
            await file.write("last line")
            await file.aclose()
            ```
        """
        return await super().aclose()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.aclose()
        else:
            await self.abort()


class _Input(AsyncWriter):
    """The stdin of a command.

    The pipe stays open until all data has arrived: the next daemon may have to continue it.
    """

    def __init__(self, stream: Stream, command: Command) -> None:
        super().__init__(stream)
        self._command, self._is_closed = command, False

    async def _send(self, data: bytes) -> None:
        if self._is_closed:
            raise InvalidStateError("this stream is closed")
        view = memoryview(data).cast("B")
        while view:
            number = self._command.number
            try:
                view = view[await self._stream.pipe.write(view[:CHUNK_BYTES]) :]
            except BrokenPipeError:
                try:
                    await self._stream.calls.call(number, "stdin.close")  # raises what broke it, if it was ours
                except (DaemonLostError, DaemonUnavailableError):
                    if await self._command.take_up(number):
                        continue
                    raise
                raise

    async def aclose(self) -> None:
        await self._end("stdin.close")

    async def abort(self) -> None:
        await self._end("stdin.abort", cancels=False)

    async def _end(self, method: str, *, cancels: bool = True) -> None:
        if self._is_closed or self._stream.pipe.closed:
            return
        self._is_closed = True
        try:
            await self._command.call(method, cancels=cancels)
        finally:
            self._stream.pipe.close()


class AsyncProcess(AsyncBlock):
    """A started command.

    Its `with` block ends a foreground command, with everything that it started. A background command lives on.

    Before you wait for a foreground command, read its output, or use `exec`: a full pipe stops it for ever. A
    background command prints to files instead.

    Example:
        ```python
        async with await sandbox.start("cat", stdin=True) as process:
            out, err = await process.communicate("hello")
            print(process.exit_code, out)  # 0 b'hello'
        ```
    """

    def __init__(self, calls: AsyncCalls, frame: Frame, action: Action[Any]) -> None:
        handle = decoded(frame)
        assert handle.pid is not None
        self._command = command = Command(calls, handle, action)
        self._pid = handle.pid
        self._status: ExitStatus | None = None
        streams = streams_of(calls, handle, frame)
        command.stdin = stdin = streams.get("stdin.end")
        self._stdin = None if stdin is None else _Input(stdin, command)
        self._stdout, self._stderr = (
            AsyncReader(streams[method], method, command) if method in streams else None
            for method in ("stdout.end", "stderr.end")
        )

    @property
    def id(self) -> str:
        """The id, for `attach`, if it is a background command."""
        return self._command.id

    @property
    def pid(self) -> int:
        """The process id inside the sandbox."""
        return self._pid

    @property
    def stdin(self) -> AsyncWriter:
        """Its stdin. InvalidStateError without `start(stdin=True)`."""
        return _present(self._stdin, "stdin", "start it with stdin=True")

    @property
    def stdout(self) -> AsyncReader:
        """Its stdout."""
        return _present(self._stdout, "stdout", "attach to it by its id")

    @property
    def stderr(self) -> AsyncReader:
        """Its stderr. InvalidStateError in a terminal, where it is part of stdout."""
        return _present(self._stderr, "stderr", "with a terminal it is part of stdout")

    @property
    def has_stderr(self) -> bool:
        """Tell whether `stderr` is apart from `stdout`."""
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
        """Wait until it has ended.

        Args:
            timeout: Seconds, a timedelta or a text such as `"5m"`. None waits as long as the command runs.

        Returns:
            The exit code or the signal, and the limit that it exceeded.

        Raises:
            TimeoutError: The command still runs then. It continues, and you can wait again.
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            async with await sandbox.start("exit 3") as process:
                print((await process.wait()).exit_code)  # 3
            ```
        """
        answer = await self._command.call("wait", seconds=seconds(timeout, "timeout"))
        self._status = status = codec.decode(answer, ExitStatus)
        self._command.warns = False
        return status

    async def communicate(self, input: str | bytes | None = None) -> tuple[bytes, bytes]:
        """Write `input`, close stdin, read both outputs to their end, and wait.

        Args:
            input: A text, which goes as UTF-8, or bytes. None: nothing.

        Returns:
            Its stdout and its stderr. Afterwards it has an `exit_code`.

        Raises:
            InvalidStateError: You gave `input`, but started the command without `stdin=True`.
            ResourceExhaustedError: One output has more than 256 MiB. paddock kills the command.
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            async with await sandbox.start("cat; echo oops >&2", stdin=True) as process:
                out, err = await process.communicate("hello")
                print(out, len(err))  # b'hello' 5
            ```
        """
        from paddock.client._blocking import atogether  # only who waits for both outputs needs threads

        if input is not None:
            _present(self._stdin, "stdin", "start it with stdin=True")
        printed = [b"", b""]

        async def feed() -> None:
            if self._stdin is not None:
                await fed(self._stdin, input or b"")

        async def drain(number: int, stream: AsyncReader | None) -> None:
            if stream is not None:
                printed[number] = await stream.read_all()

        await atogether(self.kill, feed, lambda: drain(0, self._stdout), lambda: drain(1, self._stderr))
        await self.wait()
        return printed[0], printed[1]

    async def signal(self, number: int) -> None:
        """Send a signal to the command and its process group.

        Args:
            number: 1 to 64, such as `signal.SIGINT`.

        Raises:
            InvalidArgumentError: The signal doesn't exist.
            InvalidStateError: The command has ended.
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            async with await sandbox.start("sleep 60") as process:
                await process.signal(2)
                print((await process.wait()).exit_code)  # 130
            ```
        """
        await self._command.call("signal", number=number)

    async def kill(self) -> None:
        """Kill everything that the command started, daemons included.

        Raises:
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            server = await sandbox.start("sleep 60", background=True)
            await server.kill()
            print((await server.wait()).signal)  # 9
            ```
        """
        await self._command.call("kill", cancels=False)

    async def resize(self, *, rows: int, columns: int) -> None:
        """Change the size of its terminal.

        Args:
            rows: Lines of text.
            columns: Characters in a line.

        Raises:
            InvalidArgumentError: The command has no terminal.
            SandboxDiedError: The sandbox has ended.

        Example:
            ```python
            async with await sandbox.start("cat", stdin=True, pty=PtySize()) as process:
                await process.resize(rows=40, columns=120)
            ```
        """
        await self._command.call("resize", size=PtySize(rows=rows, columns=columns))

    async def aclose(self) -> None:
        """Drop the handle. paddock kills a foreground command, a background command lives on.

        Example:
            ```python
            process = await sandbox.start("sleep 60")
            await process.aclose()
            ```
        """
        command = self._command
        if not command.end():
            return
        try:
            await command.call("close", cancels=False)
        except DaemonLostError:
            pass  # no daemon has it: it has ended, or runs in the background
        for reader in (self._stdout, self._stderr):
            if reader is not None:
                await reader.aclose()
        for stream in (command.stdin, *command.streams.values()):
            if stream is not None:
                stream.pipe.close()

    def __repr__(self) -> str:
        how = "runs" if self._status is None else f"ended with {self._status.exit_code}"
        return f"<{type(self).__name__} {self.id} pid {self.pid} {how}>"


async def fed(stdin: AsyncWriter, data: str | bytes) -> None:
    """Write to a command's stdin and close it. A command that reads no more isn't an error."""
    try:
        await stdin.write(data)
        await stdin.aclose()
    except BrokenPipeError:
        pass


def _present(stream: S | None, name: str, hint: str) -> S:
    if stream is None:
        raise InvalidStateError(f"the command has no {name} here", hint=hint)
    return stream
