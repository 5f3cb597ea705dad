"""One request for a file of a registry that the package cache may have, or is to have."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ._http1 import Fields, Request, Response, write_response
from ._package_cache import Broken, PackageCache, Reading, Wanted
from ._package_store import NoRoom
from ._refusal import Refused
from ._stream import Stream
from ._upstream import Upstream
from ._wire import Lost

if TYPE_CHECKING:
    from ._connection import Connection


class Packaged:
    """`how` is what the cache did, for the records; `given` URL and digest of what the client had to its end."""

    def __init__(self, connection: Connection, packages: PackageCache, wanted: Wanted) -> None:
        self._connection, self._room = connection, connection.room
        self._packages, self._wanted = packages, wanted
        self._asks, self._broken = False, ""
        self.how: str | None = None
        self.given: tuple[str, str] | None = None

    def close(self) -> None:
        """The request is over. Others who want the same need not wait for it any more."""
        if self._asks:
            self._asks = False
            self._packages.asked(self._wanted)

    async def answer(self, request: Request, returning: Callable[[Response], Stream]) -> bool | None:
        """Gives out what there is already: whether the connection can go on. None: the upstream has to be asked."""
        target = self._connection.target
        for _ in range(2):  # what breaks before any of it was given out is no answer
            reading = await self._packages.open(
                self._wanted, lambda address: target is not None and self._room.may_dial(target, address)
            )
            if reading is None:
                self._asks = True
                return None
            if (goes_on := await self._read_out(reading, request, returning)) is not None:
                return goes_on
        return None

    def keep(self, response: Response, upstream: Upstream) -> Reading | None:
        """Hands `upstream` over, if its answer is to be kept."""
        room = self._room
        revision = room.door.policy.revision

        def ended(reusable: bool) -> None:
            if reusable and not room.is_shut and room.door.policy.revision == revision:
                room.pool.give(upstream, tls=True)
            else:
                upstream.wire.close()

        try:
            return self._packages.fetch(self._wanted, response, upstream.wire, upstream.address, ended)
        except NoRoom as why:
            self.how = f"not kept: {why}"
            return None
        finally:
            self.close()

    async def give(self, reading: Reading, request: Request, returning: Callable[[Response], Stream]) -> bool:
        """What `keep` began: whether the connection can go on. Refused; Lost."""
        goes_on = await self._read_out(reading, request, returning)
        if goes_on is None:
            raise Refused(self._broken, status=502, rule="cache")
        return goes_on

    async def _read_out(
        self, reading: Reading, request: Request, returning: Callable[[Response], Stream]
    ) -> bool | None:
        """None: it broke, and nothing was said yet."""
        connection, wire, entry = self._connection, self._connection.wire, reading.entry
        self.how, connection.source, sent = reading.how, entry.address, wire.sent
        wire.guard(reading)
        wire.watch(True)
        try:
            buffer = bytearray(await reading.next())
            response = whole(entry.fields, entry.size)
            stream = returning(response)
            if response.length is None:
                response.chunked = request.minor > 0
            goes_on = request.keep_alive and (response.chunked or response.length is not None)
            stream.chunked = response.chunked
            out = write_response(response, keep_alive=goes_on, minor=request.minor)
            while True:
                out += stream.take(buffer)
                wire.write(out)
                await wire.drain()
                if stream.done:
                    self.given = self._wanted.url, self._wanted.digest
                    return goes_on
                out = bytearray()
                buffer += await reading.next()
        except Broken as broken:
            if wire.error is not None or wire.sent > sent:
                wire.reset()
                raise Lost(f"the answer was cut off: {broken}") from None
            self._broken = str(broken)
            return None
        finally:
            reading.close()
            wire.guard(None)
            wire.watch(False)
            connection.source = None


def whole(fields: Fields, size: int) -> Response:
    """Of an answer that is all there."""
    return Response(
        status=200,
        phrase=b"OK",
        minor=1,
        fields=list(fields),
        length=size,
        chunked=False,
        keep_alive=True,
        upgrade=None,
        bodiless=False,
    )
