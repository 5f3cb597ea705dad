"""What a pilot is told by the service that starts it: a length of four bytes, and an object in JSON, on a descriptor.

Not on its command line, which everybody on the machine reads (proc(5)): there are secrets among it.
"""

from __future__ import annotations

import os

from ._frames import Json, dump_json, parse_json

_LENGTH_BYTES = 4


def pack_orders(orders: Json) -> bytes:
    text = dump_json(orders)
    return len(text).to_bytes(_LENGTH_BYTES, "big") + text


def read_orders(source: int) -> Json:
    """ConnectionError: whoever was to say it has gone."""
    return parse_json(_read(source, int.from_bytes(_read(source, _LENGTH_BYTES), "big")))


def _read(source: int, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = os.read(source, count - len(data))
        if not part:
            raise ConnectionError("who was to say what is to be done has gone")
        data += part
    return bytes(data)
