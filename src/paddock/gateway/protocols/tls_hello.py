"""Parses the first message of TLS, as far as a gateway needs it: the server name, and an encrypted hello.

It comes from inside a sandbox, in any division into records, up to 16 KiB long, and may be hostile.
"""

from __future__ import annotations

import msgspec

from .refusal import BadMessage

MAX_HELLO_BYTES = 16 << 10
"""Largest hello. Post-quantum key shares make hellos of some 2 KiB, and no client sends a larger one than this."""

ACCESS_DENIED = b"\x15\x03\x01\x00\x02\x02\x31"
"""The alert that a client reads as "access denied", as the first record of an answer."""

_HANDSHAKE, _CLIENT_HELLO = 22, 1
_SERVER_NAME, _ESNI, _ECH = 0, 0xFFCE, 0xFE0D


class Hello(msgspec.Struct, frozen=True):
    """A TLS hello. `server_name` is as received. `hidden`: an encrypted client hello may name another server."""

    server_name: str | None
    hidden: bool


def looks_like_tls(data: bytes | bytearray) -> bool:
    """Tell whether one or more first bytes begin a TLS handshake."""
    return data[0] == _HANDSHAKE and (len(data) < 2 or data[1] == 3)


def read_hello(data: bytes | bytearray) -> Hello | None:
    """Read a hello, or return None if it is incomplete."""
    message = _message(bytes(data[:MAX_HELLO_BYTES]))
    if message is None:
        if len(data) >= MAX_HELLO_BYTES:
            raise BadMessage(f"a TLS hello of more than {MAX_HELLO_BYTES} bytes")
        return None
    return _read(message)


def _message(data: bytes) -> bytes | None:
    """Return the body of the first handshake message, put together from its records."""
    message, at = bytearray(), 0
    while len(message) < 4 or len(message) < 4 + int.from_bytes(message[1:4], "big"):
        header = data[at : at + 5]
        if (header and header[0] != _HANDSHAKE) or (len(header) > 1 and header[1] != 3):
            raise BadMessage("a record that is no TLS handshake")
        if len(header) < 5:
            return None
        length = int.from_bytes(header[3:5], "big")
        if not 0 < length <= 1 << 14:
            raise BadMessage(f"a TLS record of {length} bytes")
        message += data[at + 5 : at + 5 + length]
        at += 5 + length
        if message and message[0] != _CLIENT_HELLO:
            raise BadMessage("a handshake that does not begin with a client's hello")
        if len(message) >= 4 and int.from_bytes(message[1:4], "big") > MAX_HELLO_BYTES:
            raise BadMessage(f"a TLS hello of more than {MAX_HELLO_BYTES} bytes")
        if at > len(data):
            break
    if len(message) < 4 or len(message) < (whole := 4 + int.from_bytes(message[1:4], "big")):
        return None
    if len(message) > whole:
        raise BadMessage("something follows the client's hello in its record")
    return bytes(message[4:])


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        self.at += size
        if self.at > len(self.data):
            raise BadMessage("a length in the TLS hello is wrong")
        return self.data[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def block(self, size: int) -> bytes:
        """Read a block with a length of `size` bytes before it."""
        return self.take(self.number(size))

    def inner(self, size: int) -> _Reader:
        """Return the rest, which must be exactly one block."""
        inner = _Reader(self.block(size))
        self.done()
        return inner

    @property
    def left(self) -> bool:
        return self.at < len(self.data)

    def done(self) -> None:
        if self.left:
            raise BadMessage("something is left over in the TLS hello")


def _read(message: bytes) -> Hello:
    reader = _Reader(message)
    reader.take(2 + 32)  # version, random
    reader.block(1)  # session
    reader.block(2)  # ciphers
    reader.block(1)  # compressions
    found: dict[int, bytes] = {}
    if reader.left:
        extensions = reader.inner(2)
        while extensions.left:
            kind = extensions.number(2)
            if kind in found:
                raise BadMessage(f"the extension {kind} twice in a TLS hello")
            found[kind] = extensions.block(2)
    return Hello(
        server_name=_server_name(found[_SERVER_NAME]) if _SERVER_NAME in found else None,
        hidden=_ECH in found or _ESNI in found,
    )


def _server_name(data: bytes) -> str:
    names = _Reader(data).inner(2)
    kind, name = names.number(1), names.block(2)
    names.done()  # a second name could be the one that a server goes by
    if kind != 0 or not name or not name.isascii():
        raise BadMessage("a TLS hello with a server's name that is none")
    return name.decode("ascii")
