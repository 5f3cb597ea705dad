"""What answers in a sandbox in the place of hosts, under one revision of its policy."""

from __future__ import annotations

from collections.abc import Callable

from paddock.model import Mock, Target

from ._cassette import Cassette, anonymous, url_of
from ._handler import Asked
from ._handlers import Handler, Handlers
from ._http1 import Request
from ._mock import MockAnswer, static
from ._refusal import Refused
from ._secret_book import SecretBook

MOST_HANDLERS = 16


class Mocks:
    """Begun anew with each revision: what handlers keep, and what cassettes have given out."""

    def __init__(self, handlers: Handlers, book: Callable[[], SecretBook]) -> None:
        self._shared, self._book = handlers, book
        self._handlers: dict[str, Handler] = {}
        self._cassettes: dict[str, Cassette] = {}

    async def answer(
        self,
        mock: Mock,
        rule: str,
        request: Request,
        target: Target,
        scheme: str,
        path: str,
        body: bytes,
        seconds: float,
    ) -> MockAnswer:
        """Refused: there is none, and why."""
        source = mock.source
        if source is None or isinstance(source, str):
            return static(mock)
        url = url_of(target, scheme, path)
        if source.cassette is not None:
            found = self._cassettes.get(rule)
            if found is None:
                found = self._cassettes[rule] = Cassette(source.cassette)
            book = self._book()
            return found.answer(request.method, anonymous(url.encode(), book).decode(), anonymous(body, book), rule)
        where, _, query = path.partition("?")
        asked = Asked(
            method=request.method,
            url=url,
            host=target.host,
            port=target.port,
            path=where,
            query=query,
            fields=tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in request.fields),
            body=body,
        )
        return await self._handler(rule, source.python or "").ask(asked, seconds)

    def end(self) -> None:
        """All that it has begun ends."""
        self._cassettes.clear()
        while self._handlers:
            self._handlers.popitem()[1].end()

    def _handler(self, rule: str, python: str) -> Handler:
        found = self._handlers.get(rule)
        if found is None:
            if len(self._handlers) >= MOST_HANDLERS:
                reason = f"a sandbox has at most {MOST_HANDLERS} handlers of mocks at once"
                raise Refused(reason, status=503, rule=rule)
            found = self._handlers[rule] = Handler(self._shared, python, rule)
        return found
