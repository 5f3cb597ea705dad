"""What is answered in the place of a host that a policy mocks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus

import msgspec

from paddock.model import Mock

_FRAMING = frozenset({"content-length", "transfer-encoding", "connection", "keep-alive", "upgrade"})
_BODILESS = frozenset({204, 304})
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]{0,8192}")
_MOST_FIELDS = 200


class MockAnswer(msgspec.Struct, frozen=True, kw_only=True):
    status: int = 200
    fields: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


def static(mock: Mock) -> MockAnswer:
    return MockAnswer(status=mock.status, fields=tuple(mock.headers.items()), body=mock.body.encode())


def checked(status: int, fields: Iterable[tuple[str, str]], body: bytes) -> MockAnswer:
    """As a server's answer is: ValueError for what cannot be sent."""
    fields = tuple(fields)
    if not 200 <= status <= 599:
        raise ValueError(f"{status} is no status of an answer")
    if len(fields) > _MOST_FIELDS:
        raise ValueError(f"more than {_MOST_FIELDS} headers")
    for name, value in fields:
        if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"{name[:128]!r} is no header that can be sent")
    return MockAnswer(status=status, fields=fields, body=body)


def write_mock(answer: MockAnswer, *, keep_alive: bool, head_only: bool) -> bytes:
    """The whole response. Where its body ends is said by us, whatever the headers say."""
    body = b"" if answer.status in _BODILESS else answer.body
    try:
        phrase = HTTPStatus(answer.status).phrase
    except ValueError:
        phrase = ""
    lines = [f"HTTP/1.1 {answer.status} {phrase}"]
    lines += [f"{name}: {value}" for name, value in answer.fields if name.lower() not in _FRAMING]
    lines += [f"Content-Length: {len(body)}"] if answer.status not in _BODILESS else []
    lines += [] if keep_alive else ["Connection: close"]
    head = "".join(line + "\r\n" for line in lines) + "\r\n"
    return head.encode("latin-1") + (b"" if head_only else body)
