"""What is answered in the place of a host that a policy mocks."""

from __future__ import annotations

from http import HTTPStatus

from paddock.model import Mock

_FRAMING = frozenset({"content-length", "transfer-encoding", "connection", "keep-alive", "upgrade"})
_BODILESS = frozenset({204, 304})


def write_mock(mock: Mock, *, keep_alive: bool, head_only: bool) -> bytes:
    """The whole response. Where its body ends is said by us, whatever the policy's headers say."""
    body = b"" if mock.status in _BODILESS else mock.body.encode()
    try:
        phrase = HTTPStatus(mock.status).phrase
    except ValueError:
        phrase = ""
    lines = [f"HTTP/1.1 {mock.status} {phrase}"]
    lines += [f"{name}: {value}" for name, value in mock.headers.items() if name.lower() not in _FRAMING]
    lines += [f"Content-Length: {len(body)}"] if mock.status not in _BODILESS else []
    lines += [] if keep_alive else ["Connection: close"]
    head = "".join(line + "\r\n" for line in lines) + "\r\n"
    return head.encode("latin-1") + (b"" if head_only else body)
