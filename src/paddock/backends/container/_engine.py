"""The container engine of this machine, Docker's or Podman's, by the API that both speak."""

from __future__ import annotations

import asyncio
import contextlib
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from paddock.errors import ErrandFailed, PlatformError

from ._http import Answer, Broken, request

T = TypeVar("T")
API = "/v1.41"
"""Docker 20.10 and Podman 4.0 have it."""
_MOST_BYTES = 64 << 20
_SECONDS = 60.0
_WORDS = 400
_SYMLINK = 1 << 27  # as Go has it (io/fs.ModeSymlink)


def missing(error: PlatformError) -> bool:
    """Whether the engine said that there is no such thing."""
    return error.details.get("engine_status") == 404


class _Stat(msgspec.Struct):
    mode: int


class Engine:
    def __init__(self, socket: Path) -> None:
        self.socket = socket

    async def get(self, path: str, kind: type[T], **query: str) -> T | None:
        """What is there; None if nothing is. PlatformError."""
        try:
            return msgspec.json.decode(await self._call("GET", path, query), type=kind)
        except PlatformError as error:
            if missing(error):
                return None
            raise
        except msgspec.DecodeError as error:
            raise self._strange(f"GET {path} answered what its API does not say: {error}") from None

    async def post(self, path: str, content: object | None = None, **query: str) -> Any:
        """What it answers, if that is JSON. PlatformError."""
        body = None if content is None else msgspec.json.encode(content)
        said = await self._call("POST", path, query, content=body)
        try:
            return msgspec.json.decode(said) if said else None
        except msgspec.DecodeError:
            return None

    async def send(self, method: str, path: str, tar: AsyncIterable[bytes], **query: str) -> bytes:
        """An archive, of any size. What it says to that, which may tell of a failure at its end."""
        return await self._call(method, path, query, content=tar, media="application/x-tar", seconds=None)

    async def delete(self, path: str, **query: str) -> bool:
        """False: there is nothing of that name."""
        try:
            await self._call("DELETE", path, query)
        except PlatformError as error:
            if missing(error):
                return False
            raise
        return True

    @contextlib.asynccontextmanager
    async def archive(self, name: str, path: str) -> AsyncGenerator[AsyncIterable[bytes]]:
        """What is below the directory `path` of a container. ErrandFailed: it is a link, which engines follow."""
        async with self._asking("GET", f"/containers/{name}/archive", {"path": path}) as answer:
            try:
                told = b64decode(answer.fields["x-docker-container-path-stat"])
                mode = msgspec.json.decode(told, type=_Stat).mode
            except (KeyError, ValueError, msgspec.DecodeError) as error:
                raise self._strange(f"it does not say what is at {path}: {error}") from None
            if mode & _SYMLINK:
                raise ErrandFailed(f"{path} was made a symbolic link inside")
            yield answer.body.parts()

    async def _call(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        *,
        content: bytes | AsyncIterable[bytes] | None = None,
        media: str = "application/json",
        seconds: float | None = _SECONDS,
    ) -> bytes:
        try:
            async with asyncio.timeout(seconds):
                async with self._asking(method, path, query, content=content, media=media) as answer:
                    return await answer.body.whole(_MOST_BYTES)
        except TimeoutError:
            raise self._strange(f"it did not answer {method} {path} within {_SECONDS:g} s") from None

    @contextlib.asynccontextmanager
    async def _asking(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        *,
        content: bytes | AsyncIterable[bytes] | None = None,
        media: str = "application/json",
    ) -> AsyncGenerator[Answer]:
        try:
            async with request(self.socket, method, API + path, query=query, content=content, media=media) as answer:
                if answer.status >= 400:
                    said = _words(await answer.body.whole(_MOST_BYTES))
                    raise PlatformError(
                        f"the container engine refused {method} {path.split('?')[0]}: {said}",
                        hint="paddock doctor",
                        engine_status=answer.status,
                    )
                yield answer
        except OSError as error:
            raise PlatformError(
                f"the container engine at {self.socket} cannot be reached: {error.strerror or error}",
                hint="start it again; what ran in it is found then",
            ) from None
        except Broken as error:
            raise self._strange(str(error)) from None

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
