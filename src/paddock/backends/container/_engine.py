"""The container engine of this machine, Docker's or Podman's, by their common API.

paddock trusts it like the machine, but limits the size of its answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import signal
import socket
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterable
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import urlencode

import msgspec

from paddock.backends.base import Ending
from paddock.backends.threads import in_its_own_thread
from paddock.errors import ErrandFailedError, PlatformError
from paddock.model import Limit, SandboxId

from ._options import OWNER, SANDBOX

T = TypeVar("T")
API = "/v1.41"
"""Docker 20.10 and Podman 4.0 have it."""
_MOST_BYTES = 64 << 20
_SECONDS = 60.0
_READ = 256 << 10
_WORDS = 1000  # Podman lists why it isn't each format of an image, and the true reason late
_SYMLINK = 1 << 27  # as Go has it (io/fs.ModeSymlink)
_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_ENDING = ("running", "stopping", "removing")
"""States in which the exit code isn't certain yet."""


def missing(error: PlatformError) -> bool:
    """Tell whether the engine reported that the object doesn't exist."""
    return error.details.get("engine_status") == 404


class Connection(http.client.HTTPConnection):
    """A connection for one request to an engine at a unix socket."""

    def __init__(self, place: Path, seconds: float) -> None:
        """`seconds` without a byte are too many."""
        super().__init__("engine", timeout=seconds, blocksize=_READ)
        self._place, self._stream = place, socket.socket(socket.AF_UNIX)

    def connect(self) -> None:
        self.sock = self._stream
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._place))

    def cut(self) -> None:
        """Close it. No thread reads from it any more, for which closing alone would wait."""
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self.close()


class _Stat(msgspec.Struct):
    mode: int


class Engine:
    def __init__(self, socket: Path) -> None:
        self.socket = socket

    async def get(self, path: str, kind: type[T], **query: str) -> T | None:
        """Return the object at `path`, or None if there is none. Raises PlatformError."""
        try:
            return msgspec.json.decode(await in_its_own_thread(self.call, "GET", path, query), type=kind)
        except PlatformError as error:
            if missing(error):
                return None
            raise
        except msgspec.DecodeError as error:
            raise self._strange(f"GET {path} answered what its API does not say: {error}") from None

    async def post(self, path: str, content: object | None = None, **query: str) -> Any:
        """Send a request, and return the answer if it is JSON. Raises PlatformError."""
        body = None if content is None else msgspec.json.encode(content)
        answer = await in_its_own_thread(self.call, "POST", path, query, body)
        try:
            return msgspec.json.decode(answer) if answer else None
        except msgspec.DecodeError:
            return None

    async def delete(self, path: str, **query: str) -> None:
        """Delete it. Raises PlatformError, also if there is nothing of that name."""
        await in_its_own_thread(self.call, "DELETE", path, query)

    @contextlib.asynccontextmanager
    async def archive(self, name: str, path: str) -> AsyncGenerator[AsyncIterable[bytes]]:
        """Yield an archive of the directory `path` of a container.

        Raises ErrandFailedError for a link, which engines would follow.
        """
        with contextlib.ExitStack() as closing:
            connection = Connection(self.socket, _SECONDS)
            closing.callback(connection.cut)
            asked = f"/containers/{name}/archive"
            answer = await in_its_own_thread(self._answer, connection, "GET", asked, {"path": path}, None)
            try:
                stat = b64decode(answer.headers["x-docker-container-path-stat"] or "")
                mode = msgspec.json.decode(stat, type=_Stat).mode
            except (ValueError, msgspec.DecodeError) as error:
                raise self._strange(f"it does not say what is at {path}: {error}") from None
            if mode & _SYMLINK:
                raise ErrandFailedError(f"{path} was made a symbolic link inside")
            yield self._parts(answer)

    async def _parts(self, answer: http.client.HTTPResponse) -> AsyncGenerator[bytes]:
        try:
            while part := await asyncio.to_thread(answer.read, _READ):
                yield part
        except (OSError, http.client.HTTPException) as error:
            raise self._strange(f"its answer was cut off: {error}") from None

    def call(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        content: bytes | IO[bytes] | None = None,
        seconds: float = _SECONDS,
    ) -> bytes:
        """Ask in the caller's thread: an object in JSON, or an archive of any size. PlatformError."""
        with contextlib.closing(Connection(self.socket, seconds)) as connection:
            return self._whole(self._answer(connection, method, path, query, content))

    def _answer(
        self, connection: Connection, method: str, path: str, query: dict[str, str], content: bytes | IO[bytes] | None
    ) -> http.client.HTTPResponse:
        target = API + path + (f"?{urlencode(query)}" if query else "")
        kind = "application/json" if isinstance(content, bytes) else "application/x-tar"
        try:
            # An engine that refuses answers before it has read all.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, target, content, {} if content is None else {"Content-Type": kind})
            answer = connection.getresponse()
        except TimeoutError:
            raise PlatformError(
                f"the container engine at {self.socket} has not answered {method} {path} for {connection.timeout:g} s",
                hint="its log may say why; start it again",
            ) from None
        except OSError as error:
            raise PlatformError(
                f"the container engine at {self.socket} cannot be reached: {error.strerror or error}",
                hint="start it again; what ran in it is found then",
            ) from None
        except http.client.HTTPException as error:
            raise self._strange(f"it does not speak HTTP, or went away in the middle: {error!r}") from None
        if answer.status >= 400:
            message = _words(self._whole(answer))
            raise PlatformError(
                f"the container engine refused {method} {path}: {message}",
                hint="paddock doctor",
                engine_status=answer.status,
            )
        return answer

    def _whole(self, answer: http.client.HTTPResponse) -> bytes:
        try:
            data = answer.read(_MOST_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise self._strange(f"its answer was cut off: {error}") from None
        if len(data) > _MOST_BYTES:
            raise self._strange(f"an answer of more than {_MOST_BYTES} bytes")
        return data

    def _strange(self, words: str) -> PlatformError:
        return PlatformError(f"the container engine at {self.socket}: {words}", hint="paddock doctor")


class _Problem(msgspec.Struct):
    message: str = ""


def _words(body: bytes) -> str:
    try:
        text = msgspec.json.decode(body, type=_Problem).message
    except msgspec.DecodeError:
        text = body[:_WORDS].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in text)[:_WORDS].strip() or "it says nothing"


# the engine's records of containers


class State(msgspec.Struct, frozen=True):
    Status: str = ""
    Running: bool = False
    OOMKilled: bool = False
    ExitCode: int = 0
    Error: str = ""


class _InspectReply(msgspec.Struct, frozen=True):
    State: State


class _CreateReply(msgspec.Struct, frozen=True):
    Id: str = ""


class _Listed(msgspec.Struct, frozen=True):
    Id: str
    Labels: dict[str, str] | None = None


async def create(engine: Engine, name: str, asked: object) -> str:
    """Return the engine's own id for it: a name may be another's by and by. PlatformError."""
    return msgspec.convert(await engine.post("/containers/create", asked, name=name) or {}, _CreateReply).Id


async def state_of(engine: Engine, name: str) -> State | None:
    """Return the state of a container, or None if there is none."""
    path = f"/containers/{name}/json"
    try:
        found = await engine.get(path, _InspectReply)
    except PlatformError as error:
        if error.details.get("engine_status") != 500:
            raise
        found = await engine.get(path, _InspectReply)  # Podman fails if it is removed while it is looked at
    return None if found is None else found.State


async def _settled(engine: Engine, name: str, *passing: str) -> State | None:
    """Wait a limited time until the container leaves these states, and return its state."""
    state = await state_of(engine, name)
    for pause in _PAUSES:
        if state is None or state.Status not in passing:
            break
        await asyncio.sleep(pause)
        state = await state_of(engine, name)
    return state


async def at_rest(engine: Engine, name: str) -> bool:
    """Wait for the engine's cleanup after its death, which would remove its files. Return False if it doesn't exist."""
    return await _settled(engine, name, *_ENDING, "stopped") is not None


async def how_it_ended(engine: Engine, name: str) -> str | None:
    """Return the reason of a container's end, or None while it runs."""
    state = await state_of(engine, name)
    if state is None:
        return "somebody removed it"
    return None if state.Running else f"{state.Error or state.Status} ({state.ExitCode})"


async def ending_of(engine: Engine, name: str) -> Ending:
    """Return the ending of a container that ended by itself, or by another program."""
    state = await _settled(engine, name, *_ENDING)
    if state is None:
        return Ending(limit=None, reason="its container was removed by somebody else")
    if state.OOMKilled:
        return Ending(limit=Limit.MEMORY, reason="its memory was used up")
    if state.ExitCode == 128 + signal.SIGKILL:
        # No program inside can do that. An engine that removes a container kills it first, and lists it a while longer.
        return Ending(limit=None, reason="its pid 1 was killed from outside: by somebody else, or for lack of memory")
    return Ending(limit=None, reason=f"its pid 1 ended with {state.ExitCode}")


async def owned(engine: Engine, owner: str) -> list[tuple[SandboxId, str]]:
    """Return the containers with the label of `owner`, each with the engine's own id."""
    filters = msgspec.json.encode({"label": [f"{OWNER}={owner}"]}).decode()
    listed = await engine.get("/containers/json", list[_Listed], all="1", filters=filters)
    found = (((one.Labels or {}).get(SANDBOX, ""), one.Id) for one in listed or ())
    return [(SandboxId(name), id) for name, id in found if name]


async def remove(engine: Engine, name: str) -> None:
    """Remove a container, if it exists."""
    for pause in (*_PAUSES, None):
        try:
            await engine.delete(f"/containers/{name}", force="1", v="1")
            return
        except PlatformError:
            # Podman's own process that cleans up after a death is at work, or another service removes it.
            if await state_of(engine, name) is None:
                return
            if pause is None:
                raise
            await asyncio.sleep(pause)
