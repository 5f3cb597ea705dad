"""HTTP/1.1 to a server on a unix socket: one request for each connection, bodies of any size in constant memory.

The server is the machine's container engine, which is trusted as the machine is; what it says is bounded all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from pathlib import Path
from urllib.parse import urlencode

import msgspec

_HEAD_BYTES = 64 << 10
_CHUNK_LINE = 256
_READ = 256 << 10


class Broken(Exception):
    """What came is not HTTP, or ended too early."""


class Body:
    """What follows the head of an answer; read at most once."""

    def __init__(self, reader: asyncio.StreamReader, length: int | None, *, chunked: bool) -> None:
        self._reader, self._length, self._chunked = reader, length, chunked

    async def parts(self) -> AsyncIterator[bytes]:
        if self._chunked:
            while (size := await self._chunk_size()) > 0:
                async for part in self._exactly(size):
                    yield part
                await self._reader.readexactly(2)
        elif self._length is not None:
            async for part in self._exactly(self._length):
                yield part
        else:
            while part := await self._reader.read(_READ):
                yield part

    async def whole(self, most: int) -> bytes:
        data = bytearray()
        async for part in self.parts():
            data += part
            if len(data) > most:
                raise Broken(f"an answer of more than {most} bytes")
        return bytes(data)

    async def _exactly(self, left: int) -> AsyncIterator[bytes]:
        while left:
            part = await self._reader.read(min(left, _READ))
            if not part:
                raise Broken("the answer was cut off")
            left -= len(part)
            yield part

    async def _chunk_size(self) -> int:
        line = await self._reader.readuntil(b"\r\n")
        if len(line) > _CHUNK_LINE:
            raise Broken("a chunk without a size")
        return int(line.partition(b";")[0], 16)


class Answer(msgspec.Struct, frozen=True):
    status: int
    body: Body
    fields: dict[str, str]
    """By name, in lower case."""


@contextlib.asynccontextmanager
async def request(
    socket: Path,
    method: str,
    path: str,
    *,
    query: dict[str, str],
    content: bytes | AsyncIterable[bytes] | None,
    media: str,
) -> AsyncGenerator[Answer]:
    """OSError: nobody listens. Broken: whoever does speaks no HTTP, or went away."""
    reader, writer = await asyncio.open_unix_connection(str(socket), limit=_HEAD_BYTES)
    try:
        target = path + (f"?{urlencode(query)}" if query else "")
        head = [f"{method} {target} HTTP/1.1", "Host: engine", "Connection: close", "User-Agent: paddock"]
        if content is not None:
            head.append(f"Content-Type: {media}")
            whole = isinstance(content, bytes)
            head.append(f"Content-Length: {len(content)}" if whole else "Transfer-Encoding: chunked")
        elif method == "POST":
            head.append("Content-Length: 0")
        writer.write("\r\n".join([*head, "", ""]).encode("ascii"))
        sending = asyncio.ensure_future(_send(writer, content))
        sending.add_done_callback(lambda _: _hang_up_if_failed(sending, writer))
        try:
            yield await _answer(reader)
        finally:
            sending.cancel()
            # OSError: an engine that refuses answers before it has read all. Other failures are the content's own.
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await sending
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        raise Broken(f"it does not speak HTTP, or went away in the middle: {error}") from None
    finally:
        writer.close()


async def _send(writer: asyncio.StreamWriter, content: bytes | AsyncIterable[bytes] | None) -> None:
    if isinstance(content, bytes):
        writer.write(content)
    elif content is not None:
        async for part in content:
            if part:
                writer.write(b"%x\r\n%b\r\n" % (len(part), part))
                await writer.drain()
        writer.write(b"0\r\n\r\n")
    await writer.drain()


def _hang_up_if_failed(sending: asyncio.Future[None], writer: asyncio.StreamWriter) -> None:
    """Whoever waits for an answer to half of it would wait for ever."""
    if not sending.cancelled() and sending.exception() is not None:
        writer.close()


async def _answer(reader: asyncio.StreamReader) -> Answer:
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1."):
            raise Broken(f"an answer that begins with {first[:60]!r}")
        status = int(rest[:3])
        if status != 100:
            break
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    chunked = fields.get("transfer-encoding", "").lower() == "chunked"
    length = 0 if status in (204, 304) else int(fields["content-length"]) if "content-length" in fields else None
    return Answer(status, Body(reader, length, chunked=chunked), fields)
