"""What must not arrive, and how it is found again in what did."""

from __future__ import annotations

import base64
import re
import secrets
import zlib
from collections.abc import Iterator, Sequence
from urllib.parse import unquote_to_bytes

import msgspec

_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"
_MOST_STREAMS = 4096
_BEGINS = re.compile(rb"\x1f\x8b\x08|\x78[\x01\x5e\x9c\xda]")


class Canary(msgspec.Struct, frozen=True):
    """`kind` is `secret`, `source` or `host`; `hosts` are where it may be."""

    kind: str
    name: str
    value: str
    hosts: frozenset[str] = frozenset()


def mint() -> str:
    """Long enough to be nobody else's, and the same in lower case: names of hosts are."""
    return "cnry" + "".join(secrets.choice(_LETTERS) for _ in range(28))


def found_in(canaries: Sequence[Canary], data: bytes) -> tuple[Canary, ...]:
    """Those that can be read in `data`, however they were written."""
    forms = [(canary, tuple(_forms(canary.value.encode()))) for canary in canaries]
    seen: dict[Canary, None] = {}
    for view in _views(data):
        for canary, written in forms:
            if canary not in seen and any(one in view for one in written):
                seen[canary] = None
    return tuple(seen)


def found_in_names(canaries: Sequence[Canary], names: Sequence[str]) -> tuple[Canary, ...]:
    """In labels, pieces in the order in which they were asked for; each may come with a number and a domain of its own,
    so a third of a canary is one."""
    asked = [re.sub(r"[.-]", "", name.lower()) for name in names]
    return tuple(
        canary
        for canary in canaries
        if any(piece in name for piece in _pieces(canary.value.encode()) for name in asked)
    )


def _pieces(value: bytes) -> Iterator[str]:
    size = len(value) // 3
    for at in range(0, len(value) - size + 1):
        part = value[at : at + size]
        yield part.decode()
        yield part.hex()
        yield base64.b32encode(part).decode().lower().rstrip("=")[: size * 8 // 5]


def _forms(value: bytes) -> Iterator[bytes]:
    yield value
    yield value[::-1]
    yield value.hex().encode()
    yield value.hex().upper().encode()
    yield base64.b32encode(value).rstrip(b"=")[:-1]
    for before in range(3):  # where in a group of three bytes it begins
        whole = base64.b64encode(bytes(before) + value)
        yield whole[(before * 4 + 2) // 3 + (1 if before else 0) : len(whole) // 4 * 4 - 4]


def _views(data: bytes) -> Iterator[bytes]:
    """As it is, and as what it could be."""
    yield data
    unspaced = re.sub(rb"[\r\n\t ]", b"", data)
    yield unspaced
    yield unspaced.replace(b"-", b"+").replace(b"_", b"/")
    yield unquote_to_bytes(data)
    for number, match in enumerate(_BEGINS.finditer(data)):
        if number == _MOST_STREAMS:
            return
        try:
            stream = zlib.decompressobj(wbits=47)
            yield stream.decompress(data[match.start() :], 1 << 20)
        except zlib.error:
            continue
