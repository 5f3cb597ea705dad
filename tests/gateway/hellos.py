"""Hellos as real clients write them."""

from __future__ import annotations

import ssl


def client_hello(name: str | None, *, alpn: tuple[str, ...] = ("h2", "http/1.1")) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname = name is not None
    if name is None:
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(list(alpn))
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def with_extension(hello: bytes, kind: int, data: bytes) -> bytes:
    """`hello` (one record) with an extension more."""
    body = bytearray(hello[9:])
    at = 2 + 32
    at += 1 + body[at]
    at += 2 + int.from_bytes(body[at : at + 2], "big")
    at += 1 + body[at]
    length = int.from_bytes(body[at : at + 2], "big")
    extension = kind.to_bytes(2, "big") + len(data).to_bytes(2, "big") + data
    body[at : at + 2] = (length + len(extension)).to_bytes(2, "big")
    return records(b"\x01" + len(body + extension).to_bytes(3, "big") + bytes(body) + extension)


def records(message: bytes, size: int = 16384) -> bytes:
    """A handshake message in records of `size` bytes."""
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece for piece in pieces)


def message(hello: bytes) -> bytes:
    """The handshake message of a hello in one record."""
    return hello[5:]
