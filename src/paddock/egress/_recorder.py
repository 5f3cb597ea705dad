"""Keeps what requests were answered, for a cassette: as the sandbox saw it, bounded, and never silently less."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Generator
from contextlib import contextmanager

from paddock.model import Recorded, Recording

from ._http1 import BadMessage, Body, Response, head_end, read_response
from ._judged import Judged
from ._mocks import anonymous
from ._secret_book import SecretBook
from ._wire import Wire

MOST_BODY_BYTES = 1 << 20
MOST_BYTES = 2 << 20
MOST_OMITTED = 1000
_ROOM_FOR_HEADS = 256 << 10
_NOT_KEPT = frozenset({"connection", "keep-alive", "content-length", "transfer-encoding", "date", "paddock-refusal"})


class Recorder:
    """Of one sandbox, from `StartRecording` on."""

    def __init__(self, book: Callable[[], SecretBook]) -> None:
        self._book = book
        self._exchanges: list[Recorded] = []
        self._omitted: list[str] = []
        self._size = 0

    def take(self) -> Recording:
        return Recording(exchanges=tuple(self._exchanges), omitted=tuple(self._omitted))

    @contextmanager
    def recording(self, wire: Wire, judged: Judged) -> Generator[Exchanged]:
        """What is written to the client in the block is the answer. What fails is omitted."""
        exchanged, method, url = Exchanged(), judged.request.method, judged.url
        wire.tap = exchanged.tap
        try:
            yield exchanged
        except BaseException as error:
            self.omit(method, url, str(error) or "it was cut off")
            raise
        else:
            self.keep(method, url, exchanged.body, bytes(exchanged.answer))
        finally:
            wire.tap = None

    def keep(self, method: str, url: str, body: bytes | None, answer: bytes) -> None:
        """`body`: None, it was larger than can be kept; `answer`: the bytes of a response of HTTP/1.1."""
        book = self._book()
        shown = anonymous(url.encode(), book).decode()
        if body is None or len(answer) > MOST_BODY_BYTES:
            return self.omit(method, url, f"a body of more than {MOST_BODY_BYTES >> 20} MiB")
        if self._size + len(answer) > MOST_BYTES:
            return self.omit(method, url, f"there is no room: {MOST_BYTES >> 20} MiB are kept already")
        try:
            response, content = _read(answer, method)
        except BadMessage as error:
            return self.omit(method, url, f"its answer was cut short: {error}")
        if response.status == 101:
            return self.omit(method, url, "it became a WebSocket")
        self._size += len(answer)
        self._exchanges.append(
            _recorded(method, shown, anonymous(body, book), response, anonymous(content, book), book)
        )

    def omit(self, method: str, url: str, why: str) -> None:
        if len(self._omitted) < MOST_OMITTED:
            self._omitted.append(f"{method} {anonymous(url.encode(), self._book()).decode()[:1024]}: {why}")
        elif len(self._omitted) == MOST_OMITTED:
            self._omitted.append("and more")


class Exchanged:
    """One request under way."""

    def __init__(self) -> None:
        self.body: bytes | None = None
        """Of the request; None: it is larger than can be kept."""
        self.answer = bytearray()

    def tap(self, data: bytes | bytearray | memoryview) -> None:
        if len(self.answer) <= MOST_BODY_BYTES + _ROOM_FOR_HEADS:
            self.answer += data


def _read(answer: bytes, method: str) -> tuple[Response, bytes]:
    """The last response of it: interim ones are passed over. BadMessage."""
    buffer = bytearray(answer)
    while True:
        end = head_end(buffer)
        if end < 0:
            raise BadMessage("there is no head")
        response = read_response(bytes(buffer[:end]), method)
        del buffer[:end]
        if response.status >= 200 or response.status == 101:
            break
    body, content = Body(response, to_the_end=True), b""
    if not response.bodiless:
        content = body.take(buffer)
        if not body.done:
            body.end()
    return response, content


def _recorded(method: str, url: str, body: bytes, response: Response, content: bytes, book: SecretBook) -> Recorded:
    headers: dict[str, str | tuple[str, ...]] = {}
    for raw, value in response.fields:
        name, text = raw.decode("latin-1").lower(), anonymous(value, book).decode("latin-1")
        if name not in _NOT_KEPT and text.isascii() and text.isprintable():
            before = headers.get(name)
            headers[name] = text if before is None else ((before,) if isinstance(before, str) else before) + (text,)
    try:
        plain, packed = content.decode(), None
    except UnicodeDecodeError:
        plain, packed = "", base64.b64encode(content).decode()
    return Recorded(
        method=method,
        url=url,
        body_sha256=hashlib.sha256(body).hexdigest() if body else None,
        status=response.status,
        headers=headers,
        body=plain,
        body_base64=packed,
    )
