"""Records exchanges for a cassette, as the sandbox saw them, with a size limit. It reports each omission."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Generator
from contextlib import contextmanager

from paddock.gateway.protocols.http1 import Response
from paddock.gateway.rules.authorization import AuthorizedRequest
from paddock.gateway.rules.secrets import SecretBook
from paddock.model import Recorded, Recording

from .answers import anonymous

MOST_BODY_BYTES = 1 << 20
MOST_BYTES = 2 << 20
MOST_OMITTED = 1000
_NOT_KEPT = frozenset({"connection", "keep-alive", "content-length", "transfer-encoding", "date", "paddock-refusal"})


class Recorder:
    """The recording of one sandbox, since `StartRecording`."""

    def __init__(self, book: SecretBook) -> None:
        self._book = book
        self._exchanges: list[Recorded] = []
        self._omitted: list[str] = []
        self._size = 0

    def take(self) -> Recording:
        return Recording(exchanges=tuple(self._exchanges), omitted=tuple(self._omitted))

    @contextmanager
    def recording(self, authorized: AuthorizedRequest) -> Generator[RecordedExchange]:
        """Record the exchange of the block. Omit a failed one."""
        exchanged, method, url = RecordedExchange(), authorized.request.method, authorized.url
        try:
            yield exchanged
        except BaseException as error:
            self.omit(method, url, str(error) or "it was cut off")
            raise
        self._keep(method, url, exchanged)

    def _keep(self, method: str, url: str, exchanged: RecordedExchange) -> None:
        book, body, response, content = self._book, exchanged.body, exchanged.response, bytes(exchanged.content)
        shown = anonymous(url.encode(), book).decode()
        if body is None or len(content) > MOST_BODY_BYTES:
            return self.omit(method, url, f"a body of more than {MOST_BODY_BYTES >> 20} MiB")
        if response is None:
            return self.omit(method, url, "it became a WebSocket")
        size = len(content) + sum(len(name) + len(value) for name, value in response.fields)
        if self._size + size > MOST_BYTES:
            return self.omit(method, url, f"there is no room: {MOST_BYTES >> 20} MiB are kept already")
        self._size += size
        self._exchanges.append(
            _recorded(method, shown, anonymous(body, book), response, anonymous(content, book), book)
        )

    def omit(self, method: str, url: str, why: str) -> None:
        if len(self._omitted) < MOST_OMITTED:
            self._omitted.append(f"{method} {anonymous(url.encode(), self._book).decode()[:1024]}: {why}")
        elif len(self._omitted) == MOST_OMITTED:
            self._omitted.append("and more")


class RecordedExchange:
    """One request under way."""

    def __init__(self) -> None:
        self.body: bytes | None = None
        """The body of the request. None: it is too large for the recording."""
        self.response: Response | None = None
        self.content = bytearray()

    def take(self, data: bytes) -> None:
        if len(self.content) <= MOST_BODY_BYTES:
            self.content += data


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
