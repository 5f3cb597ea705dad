"""The answers for hosts that a sandbox's policy mocks: texts, cassettes and handlers."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import socket
from collections.abc import Sequence
from http import HTTPStatus

import msgspec

from paddock.gateway.mocking import Request as Asked
from paddock.gateway.processes.fork_server import ask
from paddock.gateway.protocols.http1 import Response
from paddock.gateway.protocols.refusal import Refused
from paddock.gateway.rules.authorization import AuthorizedRequest
from paddock.gateway.rules.secrets import SecretBook
from paddock.model import Mock, Recorded

from .handler import HandlerHost, MockAnswer, Question

_FRAMING = frozenset({"content-length", "transfer-encoding", "connection", "keep-alive", "upgrade"})
_BODILESS = frozenset({204, 304})
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]{0,8192}")
_MOST_FIELDS = 200


def check(answer: MockAnswer) -> None:
    """Check an answer. Raises ValueError if a server couldn't send it."""
    if not 200 <= answer.status <= 599:
        raise ValueError(f"{answer.status} is not a status between 200 and 599")
    if len(answer.headers) > _MOST_FIELDS:
        raise ValueError(f"more than {_MOST_FIELDS} headers")
    for name, value in answer.headers:
        if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"{name[:128]!r} is not a valid header")


def response_of(answer: MockAnswer, *, head_only: bool) -> Response:
    """Make the response's head. The gateway sets the length of the body, and ignores headers about it."""
    try:
        phrase = HTTPStatus(answer.status).phrase
    except ValueError:
        phrase = ""
    none = answer.status in _BODILESS
    return Response(
        status=answer.status,
        phrase=phrase.encode("ascii"),
        fields=[(n.encode("latin-1"), v.encode("latin-1")) for n, v in answer.headers if n.lower() not in _FRAMING],
        length=None if none else len(answer.body),
        bodiless=none or head_only,
    )


_MOST_NEAR = 3


class Cassette:
    """The cassette of one sandbox under one revision. It gives each answer once."""

    def __init__(self, exchanges: Sequence[Recorded]) -> None:
        self._left: dict[tuple[str, str], list[Recorded]] = {}
        for exchange in exchanges:
            self._left.setdefault((exchange.method, exchange.url), []).append(exchange)

    def answer(self, method: str, url: str, body: bytes, rule: str) -> MockAnswer:
        """Return the next matching answer, and remove it. Raise Refused if there is none."""
        left = self._left.get((method, url), [])
        digest = hashlib.sha256(body).hexdigest()
        for index, one in enumerate(left):
            if one.body_sha256 in (None, digest):
                if not one.repeat:
                    del left[index]
                return _answer(one)
        raise Refused(
            f"the cassette has no answer (left) to {method} {url[:200]}", rule=rule, hint=self._near(url, left)
        )

    def _near(self, url: str, left: Sequence[Recorded]) -> str:
        if left:
            return f"it has {len(left)} for a request with another body"
        path = url.partition("?")[0]
        near = [f"{method} {known}" for (method, known), some in self._left.items() if some and known.startswith(path)]
        return f"it has {', '.join(near[:_MOST_NEAR])}"[:400] if near else "record it again, or add the exchange"


def anonymous(data: bytes, book: SecretBook) -> bytes:
    """Put the names of secrets in the places of their placeholders, which differ between sandboxes."""
    for placeholder, name in book.placeholders():
        data = data.replace(placeholder, stand_in(name))
    return data


def stand_in(name: str) -> bytes:
    """Return the mock's view of a secret."""
    return b"paddock-secret-" + name.encode()


def _answer(one: Recorded) -> MockAnswer:
    headers = tuple(
        (name, value)
        for name, values in one.headers.items()
        for value in ((values,) if isinstance(values, str) else values)
    )
    body = one.body.encode() if one.body_base64 is None else base64.b64decode(one.body_base64)
    return MockAnswer(status=one.status, headers=headers, body=body)


MOST_TOGETHER = 128
MOST_ANSWER_BYTES = 8 << 20


class Handler:
    """`ask` one after the other. After a failure of the process, the next request begins a new one."""

    def __init__(self, host: HandlerHost, python: str, rule: str) -> None:
        self._host, self._python, self._rule = host, python, rule
        self._peer: socket.socket | None = None
        self._turn = asyncio.Lock()
        self._ended = False

    async def ask(self, asked: Asked, seconds: float) -> MockAnswer:
        """Return the handler's answer. Raise Refused: 502 if it raised or died, 503 if it can't start, 504 if it took
        longer."""
        async with self._turn:
            in_step = False
            try:
                async with asyncio.timeout(seconds):
                    reply = await self._converse(asked)
                in_step = True
            except TimeoutError:
                raise self._failed(f"took longer than {seconds:g} s", 504) from None
            except EOFError:
                raise self._failed("died", 502) from None
            except (OSError, ValueError, msgspec.DecodeError) as error:
                raise self._failed(f"died: {error}", 502) from None
            finally:
                if not in_step:  # the answer to another's question would be the next one's
                    self._stop()
        if reply.error is not None:
            raise self._failed(f"failed: {reply.error}", 502)
        try:
            check(reply)
        except ValueError as error:
            raise self._failed(f"gave no answer: {error}", 502) from None
        return reply

    def end(self) -> None:
        """End the handler for good. A waiting request gets a refusal."""
        self._ended = True
        if not self._turn.locked():
            self._stop()
        elif self._peer is not None:
            self._peer.shutdown(socket.SHUT_RDWR)

    async def _converse(self, asked: Asked) -> MockAnswer:
        python = None
        if self._peer is None:
            self._peer, python = self._begin(), self._python
        question: Question = (python, asked)
        answer = await ask(self._peer, msgspec.msgpack.encode(question), MOST_ANSWER_BYTES)
        return msgspec.msgpack.decode(answer, type=MockAnswer)

    def _begin(self) -> socket.socket:
        host = self._host
        if self._ended:
            raise Refused("the policy has changed meanwhile", status=503, rule=self._rule, hint="try again")
        if host.living >= MOST_TOGETHER:
            raise self._failed(f"would be one of more than {MOST_TOGETHER}", 503)
        try:
            peer = host.start()
        except OSError as error:
            raise self._failed(f"cannot be begun: {error}", 503) from None
        host.living += 1
        return peer

    def _stop(self) -> None:
        if self._peer is not None:
            self._host.living -= 1
            self._peer.close()
            self._peer = None

    def _failed(self, what: str, status: int) -> Refused:
        return Refused(f"the mock's handler {what}", status=status, rule=self._rule)


MOST_HANDLERS = 16


class Mocks:
    """The mocks of one revision. A new revision resets handlers and cassettes."""

    def __init__(self, host: HandlerHost | None, book: SecretBook) -> None:
        self._host, self._book = host, book
        self._handlers: dict[str, Handler] = {}
        self._cassettes: dict[str, Cassette] = {}

    async def answer(self, mock: Mock, authorized: AuthorizedRequest, body: bytes, seconds: float) -> MockAnswer:
        """Return the mock's answer. Raise Refused if there is none, and say why."""
        source, request, rule = mock.source, authorized.request, authorized.verdict.rule
        if source is None or isinstance(source, str):
            return MockAnswer(status=mock.status, headers=tuple(mock.headers.items()), body=mock.body.encode())
        url = authorized.url
        if source.cassette is not None:
            found = self._cassettes.get(rule)
            if found is None:
                found = self._cassettes[rule] = Cassette(source.cassette)
            book = self._book
            return found.answer(request.method, anonymous(url.encode(), book).decode(), anonymous(body, book), rule)
        where, _, query = authorized.path.partition("?")
        asked = Asked(
            method=request.method,
            url=url,
            host=authorized.target.host,
            port=authorized.target.port,
            path=where,
            query_string=query,
            fields=tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in request.fields),
            body=body,
        )
        return await self._handler(rule, source.python or "").ask(asked, seconds)

    def end(self) -> None:
        """End all handlers and cassettes."""
        self._cassettes.clear()
        while self._handlers:
            self._handlers.popitem()[1].end()

    def _handler(self, rule: str, python: str) -> Handler:
        found = self._handlers.get(rule)
        if found is None:
            if self._host is None:
                reason = "the mock's handler cannot be confined on this machine (it has no Landlock), and is not run"
                raise Refused(reason, status=503, rule=rule)
            if len(self._handlers) >= MOST_HANDLERS:
                reason = f"a sandbox has at most {MOST_HANDLERS} handlers of mocks at once"
                raise Refused(reason, status=503, rule=rule)
            found = self._handlers[rule] = Handler(self._host, python, rule)
        return found
