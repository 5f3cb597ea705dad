"""Commands, and their results."""

from __future__ import annotations

from .value import DatetimeField, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .ids import ExecId
    from .sandbox import Limit


class PtySize(Value):
    """The size of a terminal, in characters.

    Example:
        ```python
        with sandbox.start("stty size", pty=PtySize(rows=40, columns=120)) as process:
            print(process.stdout.read_all().decode())  # 40 120
        ```
    """

    rows: int = 24
    columns: int = 80


class ExecSpec(Value, forbid_unknown_fields=True):
    """One command.

    paddock executes `argv` as it is, and finds it through PATH. It adds `env` to the template's variables. `cwd=None`
    is the template's working directory, `user=None` its user. `timeout_seconds` ends the command with all processes
    that it started. `stdin`: False is /dev/null, True is a pipe. With `pty`, stderr is part of stdout. `shell`: `argv`
    is a shell and its line. If that shell is missing, `/bin/sh` runs the line.
    """

    argv: tuple[str, ...]
    cwd: str | None = None
    env: dict[str, str] = {}
    user: str | None = None
    timeout_seconds: float | None = None
    stdin: bool = False
    pty: PtySize | None = None
    shell: bool = False


class ExitStatus(Value):
    """The end of a command. Exactly one of `code` and `signal` is set, as the kernel reported it.

    Example:
        ```python
        with sandbox.start("kill -9 $$") as process:
            status = process.wait()
        print(status.code, status.signal, status.exit_code)  # None 9 137
        ```
    """

    code: int | None = None
    signal: int | None = None
    limit: Limit | None = None
    """The limit that a failed command exceeded.

    None after exit 0: `usage` counts all events.

    The kernel or paddock counted the event. Without a counter, the text on stderr decides. Concurrent commands share a
    counter.
    """
    duration_seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """The code, or 128 + signal, as in a shell."""
        return self.code if self.code is not None else 128 + (self.signal or 0)


class Output(Value):
    """One stream of a finished command: the first and the last bytes, and the number of bytes between them.

    `total_bytes` counts everything that the command printed. If bytes are missing here, `file` is a path on the host
    with all of them. It exists as long as the sandbox lives. None: the disk is full, or the sandbox's outputs would
    take more than its `disk_mib` there.

    Example:
        ```python
        out = sandbox.exec("seq 1000", capture_bytes=10).out
        print(out.total_bytes, out.omitted_bytes)  # 3893 3883
        ```
    """

    head: bytes = b""
    tail: bytes = b""
    total_bytes: int = 0
    file: str | None = None

    @property
    def omitted_bytes(self) -> int:
        """The number of bytes between `head` and `tail`."""
        return self.total_bytes - len(self.head) - len(self.tail)

    def text(self) -> str:
        """Decode it from UTF-8. Invalid bytes become `�`.

        Returns:
            The text, with a marker where bytes are missing.

        Example:
            ```python
            print(sandbox.exec("echo hello").out.text())  # hello
            ```
        """
        if not self.omitted_bytes:
            return (self.head + self.tail).decode("utf-8", "replace")
        marker = f"\n[… {self.omitted_bytes} bytes left out …]\n"
        return self.head.decode("utf-8", "replace") + marker + self.tail.decode("utf-8", "replace")


class ExecResult(Value):
    """A finished command. A non-zero exit is a result, not an exception.

    Example:
        ```python
        result = sandbox.exec("echo hello; exit 3")
        print(result.exit_code, result.ok, result.stdout)  # 3 False hello
        ```
    """

    id: ExecId
    status: ExitStatus
    out: Output
    err: Output

    @property
    def exit_code(self) -> int:
        """The code, or 128 + signal, as in a shell."""
        return self.status.exit_code

    @property
    def signal(self) -> int | None:
        """The signal that ended it, or None."""
        return self.status.signal

    @property
    def limit(self) -> Limit | None:
        """The limit that it exceeded, such as `time`, or None."""
        return self.status.limit

    @property
    def duration_seconds(self) -> float:
        """How long it ran, in seconds."""
        return self.status.duration_seconds

    @property
    def stdout(self) -> str:
        """The text that it printed on stdout, with a marker where bytes are missing."""
        return self.out.text()

    @property
    def stderr(self) -> str:
        """The text that it printed on stderr, with a marker where bytes are missing."""
        return self.err.text()

    @property
    def stdout_bytes(self) -> int:
        """How many bytes the command printed on stdout, those included that `stdout` lacks."""
        return self.out.total_bytes

    @property
    def stderr_bytes(self) -> int:
        """The same of stderr."""
        return self.err.total_bytes

    @property
    def ok(self) -> bool:
        """Tell whether it exited with 0."""
        return self.status.code == 0

    @property
    def truncated(self) -> bool:
        """True if `stdout` or `stderr` lacks bytes in its middle. `out.file` and `err.file` have all of them."""
        return bool(self.out.omitted_bytes or self.err.omitted_bytes)

    def __repr__(self) -> str:
        limit = "" if self.limit is None else f", limit={self.limit.value!r}"
        streams = f"stdout={_short(self.stdout)}, stderr={_short(self.stderr)}"
        return f"<ExecResult exit_code={self.exit_code}{limit}, {streams}, {self.duration_seconds:.3f} s>"

    def observation(self, max_chars: int = 4000) -> str:
        """Format it for a prompt: how it ended, then both streams.

        It cuts each stream in its middle. A stream that needs less than its half leaves the rest to the other.

        Args:
            max_chars: About how many characters of both streams together.

        Returns:
            The text.

        Example:
            ```python
            print(sandbox.exec("echo hello").observation())  # [exit code 0, … s] [stdout] hello
            ```
        """
        ending = f"exit code {self.exit_code}" if self.signal is None else f"killed by signal {self.signal}"
        limit = f", limit reached: {self.limit}" if self.limit is not None else ""
        half = max_chars // 2
        out_chars = max(half, max_chars - _length(self.err))
        err_chars = max(half, max_chars - _length(self.out))
        parts = [f"[{ending}{limit}, {self.duration_seconds:.1f} s]"]
        for name, stream, chars in (("stdout", self.out, out_chars), ("stderr", self.err, err_chars)):
            if stream.total_bytes:
                parts.append(f"[{name}]\n{_excerpt(stream, chars)}")
        return "\n".join(parts)


def _short(text: str) -> str:
    return repr(text if len(text) <= 200 else text[:199] + "…")


def _length(stream: Output) -> int:
    return stream.total_bytes if stream.omitted_bytes else len((stream.head + stream.tail).decode("utf-8", "replace"))


def _excerpt(stream: Output, max_chars: int) -> str:
    """Return head and tail of at most `max_chars`, with the number of missing bytes between them."""
    if not stream.omitted_bytes:
        text = (stream.head + stream.tail).decode("utf-8", "replace")
        if len(text) <= max_chars:
            return text
        head, tail = text, text
    else:
        head, tail = stream.head.decode("utf-8", "replace"), stream.tail.decode("utf-8", "replace")
    head = head[: max_chars - max_chars // 2]
    tail = tail[max(0, len(tail) - max_chars // 2) :]
    omitted = stream.total_bytes - len(head.encode()) - len(tail.encode())
    return f"{head}\n[… {max(omitted, 0)} bytes left out …]\n{tail}"


class ExecInfo(Value):
    """A command that runs, or ran in the background. `status` is None while it runs.

    `started_at` is in seconds since the epoch, and `pid` is the process id inside.

    Example:
        ```python
        running = [info for info in sandbox.processes() if info.status is None]
        print([info.argv for info in running if info.background])
        ```
    """

    id: ExecId
    argv: tuple[str, ...]
    pid: int
    started_at: float
    background: bool
    status: ExitStatus | None = None
    started = DatetimeField("started_at")
