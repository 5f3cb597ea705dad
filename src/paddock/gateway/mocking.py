"""The input and output of a mock's handler: `def handle(request)`. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import parse_qsl


@dataclass(frozen=True, slots=True)
class Request:
    """A complete request of the sandbox.

    Its secrets are placeholders. Names of headers are in lower case.

    `headers` has the last of several with one name, and `fields` has all.
    """

    method: str
    url: str
    host: str
    port: int
    path: str
    query_string: str
    fields: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        return dict(self.fields)

    @property
    def query(self) -> dict[str, str]:
        """Return the parameters. Of several with one name the last counts."""
        return dict(parse_qsl(self.query_string, keep_blank_values=True))

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class Response:
    """Headers that say where the body ends are the gateway's to write."""

    status: int = 200
    headers: Mapping[str, str] | Sequence[tuple[str, str]] = field(default_factory=dict[str, str])
    body: bytes | str = b""


def response_of(returned: object) -> Response:
    """Make a response from a handler's result. Raises TypeError for one of another type.

    A dictionary or a list becomes JSON, and a text stays text. A pair is a status and one of these. None is 204.
    """
    if isinstance(returned, tuple):
        status, content = cast("tuple[object, object]", returned)
        if not isinstance(status, int):
            raise TypeError(f"a status is a number, not {type(status).__name__}")
        return _with(status, content)
    return _with(200, returned)


def _with(status: int, content: object) -> Response:
    match content:
        case Response():
            return content
        case None:
            return Response(204 if status == 200 else status)
        case dict() | list():
            return Response(status, {"Content-Type": "application/json"}, json.dumps(content))
        case str():
            return Response(status, {"Content-Type": "text/plain; charset=utf-8"}, content)
        case bytes() | bytearray():
            return Response(status, {"Content-Type": "application/octet-stream"}, bytes(content))
        case _:
            raise TypeError(f"handle returned {type(content).__name__}")
