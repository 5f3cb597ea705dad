"""paddock, as a program inside a sandbox has it: children of that sandbox, and nothing else.

    from paddock import Sandbox

    outer = Sandbox.current()
    children = outer.fork(3)                       # with the files of this sandbox at this instant
    results = [child.exec("pytest -q") for child in children]
    outer.promote(children[0])                     # its /workspace becomes this one's
    for child in children:
        child.kill()

It and `paddock.wire` are all that there is of paddock inside: standard library only, for any Python from 3.8 on. The
names are those of the SDK outside. Safe to use from several threads, each of which has a separate connection.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any, overload

from paddock.wire import PROTOCOL, Connection, Kind, WireError

__all__ = ["ExecResult", "PaddockError", "Sandbox"]

_RETRY_SECONDS = 2.0
_mine = threading.local()


class PaddockError(Exception):
    """An error of paddock.

    `code` is the kind: invalid_argument, not_found, policy_denied, resource_exhausted, sandbox_died …
    """

    def __init__(self, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message} ({hint})")
        self.code, self.message, self.hint = code, message, hint


class ExecResult:
    """A finished command. A non-zero exit is a result. `limit` is the exceeded limit, or None."""

    def __init__(self, answer: dict[str, Any]) -> None:
        status = answer["status"]
        self.signal: int | None = status["signal"]
        self.exit_code: int = 128 + status["signal"] if status["code"] is None else status["code"]
        self.limit: str | None = status["limit"]
        self.stdout, self.stderr = _text(answer["out"]), _text(answer["err"])
        self.duration_seconds: float = status["duration_seconds"]

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    def __repr__(self) -> str:
        return f"<ExecResult exit_code={self.exit_code}>"


class Filesystem:
    """Files of a child, of at most 4 MiB each."""

    def __init__(self, sandbox: str) -> None:
        self._sandbox = sandbox

    def read(self, path: str | os.PathLike[str]) -> bytes:
        return base64.b64decode(_ask("file.read", sandbox=self._sandbox, path=os.fspath(path)))

    def read_text(self, path: str | os.PathLike[str]) -> str:
        return self.read(path).decode()

    def write(self, path: str | os.PathLike[str], data: str | bytes) -> None:
        content = data.encode() if isinstance(data, str) else data
        _ask("file.write", content, sandbox=self._sandbox, path=os.fspath(path))


class Sandbox:
    """A child of the sandbox that this program runs in, or, as `Sandbox.current()`, that one itself."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.id: str = answer["id"]
        self.name: str | None = answer["spec"]["name"]
        self.state: str = answer["state"]
        self.filesystem = self.files = Filesystem(self.id)

    @staticmethod
    def current() -> OuterSandbox:
        return OuterSandbox()

    @classmethod
    def create(
        cls,
        name: str | None = None,
        ttl: float | None = None,
        limits: dict[str, float] | None = None,
        env: dict[str, str] | None = None,
        ttl_seconds: float | None = None,
    ) -> Sandbox:
        """Create an empty child, on the template of this sandbox.

        The default of `limits` is a child's maximum.

        `ttl` is in seconds. `ttl_seconds` is its old name.
        """
        spec: dict[str, Any] = {
            "name": name,
            "ttl_seconds": ttl_seconds if ttl is None else ttl,
            "limits": limits,
            "env": env,
        }
        return cls(_ask("sandbox.create", spec={key: value for key, value in spec.items() if value is not None}))

    @classmethod
    def list(cls) -> list[Sandbox]:
        return [cls(answer) for answer in _ask("sandbox.list")]

    def exec(
        self,
        command: str | Sequence[str],
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        input: str | bytes | None = None,
        check: bool = False,
        timeout_seconds: float | None = None,
    ) -> ExecResult:
        """Run a command to its end.

        A text is a line for bash (or sh), a sequence is the program with its arguments.

        `timeout` is in seconds. `timeout_seconds` is its old name.
        """
        shell = isinstance(command, str)
        argv = ["/bin/bash", "-c", command] if shell else [os.fspath(part) for part in command]
        data = input.encode() if isinstance(input, str) else input
        spec: dict[str, Any] = {"argv": argv, "cwd": cwd, "env": env or {}, "user": user, "shell": shell}
        spec["timeout_seconds"] = timeout_seconds if timeout is None else timeout
        encoded = None if data is None else base64.b64encode(data).decode()
        result = ExecResult(_ask("exec.run", sandbox=self.id, spec=spec, input=encoded))
        if check and not result.ok:
            raise PaddockError("command_failed", f"{command!r} exited with {result.exit_code}: {result.stderr[-2000:]}")
        return result

    def pause(self) -> None:
        """Pause it until `resume`, or its next use."""
        self.state = _ask("sandbox.pause", sandbox=self.id)["state"]

    def resume(self) -> None:
        self.state = _ask("sandbox.resume", sandbox=self.id)["state"]

    def kill(self) -> None:
        self.state = _ask("sandbox.kill", sandbox=self.id)["state"]

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def __repr__(self) -> str:
        return f"<Sandbox {self.id} {self.state}>"


class OuterSandbox:
    """The sandbox that this program runs in."""

    @overload
    def fork(self, count: None = None) -> Sandbox: ...
    @overload
    def fork(self, count: int) -> list[Sandbox]: ...
    def fork(self, count: int | None = None) -> Sandbox | list[Sandbox]:
        """Return a child with the files of this sandbox at this instant, or a list of `count`."""
        children = [
            Sandbox(answer) for answer in _ask("sandbox.fork", sandbox=_outer(), count=1 if count is None else count)
        ]
        return children[0] if count is None else children

    def promote(self, child: Sandbox, path: str = "/workspace") -> None:
        """Replace the directory `path` of this sandbox by the child's."""
        _ask("sandbox.promote", sandbox=_outer(), child=child.id, path=path)


def _ask(action: str, data: bytes = b"", **fields: Any) -> Any:
    content = base64.b64encode(data).decode()
    return _said(_connected(), Kind.OPEN, {"action": {"action": action, **fields}, "data": content})


def _outer() -> str:
    _connected()
    return _mine.outer


def _said(connection: Connection, kind: Kind, message: object) -> Any:
    """Return the relay's answer. After a close, the connection is stale: the next request makes another one."""
    try:
        connection.send(kind, connection.next_channel(), json.dumps(message).encode())
        frame = connection.receive()
        if frame is None:
            raise WireError("the connection was closed")
    except BaseException as error:
        connection.close()
        if isinstance(error, (OSError, WireError)):
            hint = "the daemon ended, or the request is too large"
            raise PaddockError("not_configured", str(error), hint) from None
        raise
    answer = json.loads(frame.body)
    if frame.kind is Kind.ERROR:
        raise PaddockError(**answer)
    return answer


def _connected() -> Connection:
    """Return this thread's connection. A fork shares the descriptor, and must not share the talk. A daemon that
    restarts ends it."""
    connection: Connection | None = getattr(_mine, "connection", None)
    if connection is not None:
        if _mine.owner == os.getpid() and not connection.is_stale:
            return connection
        connection.close()
    path = os.environ.get("PADDOCK_SOCKET", "")
    if not path:
        raise PaddockError("not_configured", "this sandbox may have no children", "make it with max_children=N")
    give_up = time.monotonic() + _RETRY_SECONDS
    while True:
        stream = socket.socket(socket.AF_UNIX)
        try:
            stream.connect(path)
            break
        except OSError as error:
            stream.close()
            if time.monotonic() > give_up:
                raise PaddockError(
                    "not_configured", f"no daemon answers at {path}: {error}", "start one outside"
                ) from None
            time.sleep(0.02)
    connection = Connection(stream)
    welcome = _said(connection, Kind.HELLO, {"protocol": PROTOCOL})
    if welcome["protocol"] != PROTOCOL:
        raise PaddockError("not_configured", "the daemon is of another version than this sandbox", "make it again")
    _mine.connection, _mine.owner, _mine.outer = connection, os.getpid(), welcome["sandbox"]
    return connection


def _text(output: dict[str, Any]) -> str:
    """Decode the output as UTF-8 with replacements for invalid bytes. A marker stands for the missing middle."""
    head, tail = base64.b64decode(output["head"]), base64.b64decode(output["tail"])
    omitted = output["total_bytes"] - len(head) - len(tail)
    marker = f"\n[… {omitted} bytes left out …]\n".encode() if omitted else b""
    return (head + marker + tail).decode("utf-8", "replace")
