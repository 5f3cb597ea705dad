"""A refusal as a gRPC client reads it: in the fields that end a call (Trailers-Only), for it looks at no body. Pure."""

from __future__ import annotations

from urllib.parse import quote

_STATUS = {400: 3, 403: 7, 408: 4, 413: 8, 421: 7, 424: 9, 501: 12, 502: 14, 503: 14, 504: 4}
_UNKNOWN = 2
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if code != 0x25)


def refusal_fields(fields: list[tuple[bytes, bytes]], body: bytes) -> list[tuple[bytes, bytes]]:
    """Of an HTTP answer with these fields and this text."""
    known = dict(fields)
    status = _STATUS.get(int(known[b":status"]), _UNKNOWN)
    words = "; ".join(body.decode(errors="replace").splitlines())
    return [
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
        (b"grpc-status", b"%d" % status),
        (b"grpc-message", quote(words, safe=_PLAIN).encode("ascii")),
        (b"paddock-refusal", known[b"paddock-refusal"]),
    ]
