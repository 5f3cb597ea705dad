"""From HTTP to WebSocket: judged as a request, then passed on as bytes; looked through where there are secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._http1 import Request, Response, write_response
from ._refusal import Refused
from ._swap import Swap
from ._websocket import Messages, converse
from ._wire import Wire

if TYPE_CHECKING:
    from ._open_door import OpenDoor

EXTENSIONS = b"sec-websocket-extensions"


async def switch(
    request: Request, response: Response, wire: Wire, server: Wire, room: OpenDoor, swap: Swap | None
) -> bool:
    """Passes on what both say, until one ends. False: the connection can't go on. Refused: 101, and nobody asked."""
    if request.upgrade != b"websocket" or response.upgrade != b"websocket":
        server.reset()
        raise Refused("the server switched protocols, unasked", status=502, rule="upstream")
    book = room.door.secrets
    if book:
        if response.get(EXTENSIONS) is not None:
            server.reset()
            raise Refused("the server extends the WebSocket, unasked", status=502, rule="upstream")
        redaction = book.redaction(keep_length=True)
        response.fields = redaction.fields(response.fields)
    wire.write(write_response(response, keep_alive=True))
    wire.watch(False)
    server.guard(wire)
    if book and swap is not None:
        outwards = Messages(outwards=True, filter=swap.message, control=swap.control)
        inwards = Messages(
            outwards=False,
            filter=lambda _: book.redaction(keep_length=True).stream(),
            control=lambda data: book.redaction(keep_length=True).whole(data),
        )
        await converse(wire, server, outwards, inwards, room.loop)
    else:
        await wire.join(server)
    server.guard(None)
    return False
