"""A page of a registry on its way to who asked for it: read whole, given to a reader, passed on as that writes it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable

import msgspec

from paddock.model.egress import RequestVerdict

from ._http1 import BadMessage, Body, Request, Response
from ._page_memory import PageMemory, Read, Remembered
from ._redact import Redaction
from ._refusal import Refused
from ._registry import Shelf
from ._registry_page import Page
from ._registry_protocols import MOST_PAGE_BYTES, PROTOCOLS, Answer, Job
from ._registry_reader import Reader
from ._wire import Wire

_MOST_HELD_BYTES = 128 << 20
_PIECE_BYTES = 1 << 20
_REQUEST_FIELDS = frozenset(
    {b"accept", b"accept-encoding", b"range", b"if-range", b"if-none-match", b"if-match", b"if-modified-since"}
    | {b"if-unmodified-since", b"a-im"}
)
_RESPONSE_FIELDS = frozenset({b"date", b"location", b"retry-after", b"www-authenticate", b"x-pypi-last-serial"})

Record = Callable[[str | None, str], int]
"""Why there is no page (None: there is), and what is held back of it. The number of the record. Unrecorded."""


class Look:
    """At one page. Made before it is asked for: the request asks for what can be looked through."""

    def __init__(
        self,
        shelf: Shelf,
        reader: Reader | None,
        page: Page,
        verdict: RequestVerdict,
        request: Request,
        record: Record,
        memory: PageMemory | None = None,
    ) -> None:
        """`memory`: the answer does not depend on who asks."""
        self._shelf, self._reader, self._page, self._verdict, self._record = shelf, reader, page, verdict, record
        self._accept = (request.get(b"accept") or b"").decode("latin-1").lower()
        self._memory, self._found = memory, None if memory is None else memory.find(page, self._item, self._accept)
        self.address = ""
        """Where the page comes from."""
        self.how: str | None = None
        """What the cache did, for the records."""
        request.upgrade = None
        request.fields = [field for field in request.fields if field[0].lower() not in _REQUEST_FIELDS]
        wanted = PROTOCOLS[page.rule.registry or ""].accept
        request.fields.append((b"Accept", wanted))
        if self._found is not None and self._found.read.etag is not None:
            request.fields.append((b"If-None-Match", self._found.read.etag))

    @property
    def _item(self) -> int:
        return self._verdict.item or 0

    def recall(self, response: Response, allowed: Callable[[str], bool]) -> bytes | None:
        """The body of a page that need not be asked for, with `response` made its head; `allowed`: whether it may come
        from an address. Refused."""
        memory, found = self._memory, self._found
        if memory is None or found is None or not memory.is_fresh(found) or not allowed(found.address):
            return None
        self.how = "page"
        return self._written(response, found.read.answer, found.body)

    async def read(self, response: Response, server: Wire, revision: Callable[[], str]) -> bytes:
        """The body as it may be seen, with `response` made its head; `revision` is the policy's. Refused; Lost."""
        if response.status == 304 and self._found is not None:
            return self._again(response, self._found, self._found.read.etag, revision)
        redirects = response.status in (301, 302, 303, 307, 308)
        if response.status != 200 and not redirects and response.status < 400:
            raise self._refused(f"the index answered {response.status}, which can't be looked into")
        content = await self._collect(response, server)
        answer, body = Answer(), b""
        if response.status == 200 and not response.bodiless:
            answer, body = await self._look(response, content)
        self._check(revision)
        return self._written(response, answer, body)

    def _again(self, response: Response, found: Remembered, etag: bytes | None, revision: Callable[[], str]) -> bytes:
        """The index has said that the page is the one that was read before."""
        self._check(revision)
        self.how = "page"
        self._keep(response, msgspec.structs.replace(found.read, etag=etag), found.body)
        response.status, response.phrase, response.bodiless = 200, b"OK", False
        return self._written(response, found.read.answer, found.body)

    def _check(self, revision: Callable[[], str]) -> None:
        if revision() != self._verdict.revision:
            raise Refused("the policy has changed meanwhile", rule=self._verdict.rule, hint="try again")

    def _keep(self, response: Response, read: Read, body: bytes) -> None:
        if self._memory is not None:
            self._memory.keep(self._page, self._item, self._accept, response, read, body, self.address)

    def _written(self, response: Response, answer: Answer, body: bytes) -> bytes:
        self._put(answer, response.status)
        response.fields = [field for field in response.fields if field[0].lower() in _RESPONSE_FIELDS]
        response.fields.append((b"Cache-Control", b"no-cache"))
        response.chunked, response.length = False, None if response.bodiless else len(body)
        if answer.kind:
            response.fields += [(b"Content-Type", answer.kind.encode()), (b"Vary", b"Accept")]
        return body

    async def _look(self, response: Response, content: bytes) -> tuple[Answer, bytes]:
        if self._reader is None:
            raise Refused("pages can't be read: there is no reader", status=503, rule="registry")
        coding = (response.get(b"content-encoding") or b"").strip().lower()
        if coding not in (b"", b"identity", b"gzip", b"x-gzip"):
            raise self._refused("the index's page is malformed: it is encoded in a way that was not asked for")
        kind = (response.get(b"content-type") or b"").partition(b";")[0].strip().lower().decode("latin-1")
        digest, etag, found = hashlib.sha256(content).digest(), response.get(b"etag"), self._found
        if found is not None and (found.read.content, found.read.kind) == (digest, kind):
            self.how = "page"
            self._keep(response, msgspec.structs.replace(found.read, etag=etag), found.body)
            return found.read.answer, found.body
        gzip = coding.endswith(b"gzip")
        job = Job(page=self._page, item=self._verdict.item or 0, kind=kind, accept=self._accept, gzip=gzip)
        answer, body = await self._reader.read(job, content, self._shelf.turn)
        if answer.malformed is not None:
            raise self._refused(f"the index's page is malformed: {answer.malformed}")
        read = Read(kind=kind, content=digest, etag=etag, judged_at=self._page.now, until=0.0, answer=answer)
        self._keep(response, read, body)
        return answer, body

    def _put(self, answer: Answer, status: int) -> None:
        """What was read holds from now on. Refused: there is nothing to be seen."""
        page = self._page
        if page.rule.registry == "crates" and not page.package:
            self._shelf.add_downloads(self._verdict.item or 0, page, answer.downloads)
        self._shelf.add(answer.files, self._verdict.revision)
        if status == 200 and page.package:
            number = self._record(answer.nothing, answer.held)
            if answer.nothing is not None:
                raise Refused(answer.nothing, rule=self._verdict.rule, number=number)

    async def _collect(self, response: Response, server: Wire) -> bytes:
        """All of it, as it came."""
        body, content, shelf = Body(response, to_the_end=True, extensions=True), bytearray(), self._shelf
        held = 0
        try:
            while True:
                content += body.take(server.buffer)
                shelf.held += len(content) - held
                held = len(content)
                if held > MOST_PAGE_BYTES:
                    raise self._refused(f"the index's page is malformed: more than {MOST_PAGE_BYTES >> 20} MiB")
                if shelf.held > _MOST_HELD_BYTES:
                    raise Refused("too many pages are read at once", status=503, rule="registry", hint="try again")
                if body.done:
                    return bytes(content)
                if not await server.more():
                    body.end()
        except BadMessage as error:
            raise self._refused(f"the index's page is malformed: {error}") from None
        finally:
            shelf.held -= held

    def _refused(self, why: str) -> Refused:
        return Refused(why, status=502, rule=self._verdict.rule)


async def redacted(redaction: Redaction, page: bytes) -> bytes:
    """In pieces, between which others have their turn."""
    stream, parts = redaction.stream(), list[bytes]()
    for start in range(0, len(page), _PIECE_BYTES):
        parts.append(stream.feed(page[start : start + _PIECE_BYTES]))
        await asyncio.sleep(0)
    return b"".join((*parts, stream.end()))
