"""Commands: what to start, and what came of it."""

from __future__ import annotations

from .value import Moment, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .ids import ExecId
    from .sandbox import Limit


class PtySize(Value):
    rows: int = 24
    columns: int = 80


class ExecSpec(Value, forbid_unknown_fields=True):
    """One command.

    `argv` is executed as it is, found through PATH. `env` is added to the template's. `cwd=None` is the
    template's working directory, `user=None` its user. `timeout_seconds` ends the command with
    everything that it started. `stdin`: False is /dev/null; True is a pipe. With `pty`, stderr is part of stdout.
    `shell`: `argv` is a shell and its line, and `/bin/sh` runs the line where that shell is missing.
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
    """How it ended. Exactly one of `code` and `signal` is set, as the kernel reported it."""

    code: int | None = None
    signal: int | None = None
    limit: Limit | None = None
    """The limit that was exceeded while the command ran, if the command failed. None after exit 0: `usage` counts all.

    A fact that the kernel or paddock counted. Where nothing counts, what stderr says. Commands that run at the same
    time share what is counted.
    """
    duration_seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """The shell's convention: the code, or 128 + signal."""
        return self.code if self.code is not None else 128 + (self.signal or 0)


class Output(Value):
    """One stream of a finished command: the first and the last bytes, and how many lay between them.

    `total_bytes` counts everything that was printed. `file` is a path on the host that holds
    all of it when something was left out of here; it lives as long as the sandbox.
    """

    head: bytes = b""
    tail: bytes = b""
    total_bytes: int = 0
    file: str | None = None

    @property
    def omitted_bytes(self) -> int:
        return self.total_bytes - len(self.head) - len(self.tail)

    def text(self) -> str:
        """UTF-8, what is invalid replaced; a marker stands for what was left out."""
        if not self.omitted_bytes:
            return (self.head + self.tail).decode("utf-8", "replace")
        marker = f"\n[… {self.omitted_bytes} bytes left out …]\n"
        return self.head.decode("utf-8", "replace") + marker + self.tail.decode("utf-8", "replace")


class ExecResult(Value):
    """A finished command. A non-zero exit is a result, not an exception."""

    id: ExecId
    status: ExitStatus
    out: Output
    err: Output

    @property
    def exit_code(self) -> int:
        return self.status.exit_code

    @property
    def signal(self) -> int | None:
        return self.status.signal

    @property
    def limit(self) -> Limit | None:
        return self.status.limit

    @property
    def duration_seconds(self) -> float:
        return self.status.duration_seconds

    @property
    def stdout(self) -> str:
        return self.out.text()

    @property
    def stderr(self) -> str:
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
        """For a prompt: how it ended, then both streams, cut in their middle to about `max_chars` together.

        A stream that needs less than its half leaves the rest to the other.
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
    """Head and tail of at most `max_chars`; what is left out is counted in bytes."""
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
    """A command that runs, or ran in the background. `status` is None while it runs."""

    id: ExecId
    argv: tuple[str, ...]
    pid: int
    started_at: float
    background: bool
    status: ExitStatus | None = None
    started = Moment("started_at")
