"""Applies a filtering rule to one request to a registry.

See docs/design/registries.md.

It filters pages. It only fetches a file if such a page has linked it, and gives it out from the package cache. It
refuses all else.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import msgspec

from paddock.gateway.protocols.http1 import CONDITIONS, Fields, Request, Response
from paddock.gateway.protocols.refusal import BadMessage, Refused
from paddock.gateway.registries import package_cache as cache
from paddock.gateway.registries import pypi
from paddock.gateway.registries.files import READ_FIRST, UnreadPage, published_at
from paddock.gateway.registries.page import Answer, PackageFile, Page
from paddock.gateway.registries.protocols import MOST_PAGE_BYTES, PROTOCOLS, Job
from paddock.gateway.rules.authorization import AuthorizedRequest
from paddock.model.egress import Target

from .relay import Relay
from .stream import ConnectionLost, ProxyStream, StoredContent

if TYPE_CHECKING:
    from .connection import Connection

_PORT = 443
_MOST_HELD_BYTES = 128 << 20
_ASKED = CONDITIONS | {b"accept"}
"""Fields that the gateway sends to a filtered registry."""
_MOST_ASKED_BYTES = 256
_RESPONSE_FIELDS = frozenset({b"date", b"location", b"retry-after", b"www-authenticate", b"x-pypi-last-serial"})


class RegistryFilter:
    """The filter for one request of `connection`."""

    def __init__(self, connection: Connection, authorized: AuthorizedRequest, *, is_our_own: bool = False) -> None:
        """Filter a request. `is_our_own`: the gateway itself asks for a page."""
        self._connection, self.network, self.is_our_own = connection, connection.network, is_our_own
        self.authorized, self._verdict = authorized, authorized.verdict
        self._rule = connection.network.policy.registry(authorized.verdict.item or 0)
        self._page: PageFilter | None = None
        """The filter for an answer that is a page."""
        self._file: CachedFile | None = None
        """The answer is a file that may come from the package cache."""
        self._delivered = False
        self._undated: PackageFile | None = None
        """The answer is a file whose age only its head says."""

    def is_silent(self) -> bool:
        """Tell whether the client prints nothing about a refused page, but about one with a wrong content type."""
        page = self._rule.registry == "pypi" and pypi.package_of(self.authorized.path) is not None
        return page and (self.authorized.request.get(b"user-agent") or b"").lower().startswith(b"pip/")

    def outcome(self) -> dict[str, str]:
        """Return the package cache's part of the record: its action, and a file that the client has."""
        answer = self._file or self._page
        about = {} if answer is None or answer.how is None else {"cache": answer.how}
        if self._file is not None and self._delivered:
            about["url"], about["digest"] = self._file.key
        return about

    def close(self) -> None:
        """Release the request's resources."""
        if self._file is not None:
            self._file.close()

    async def judge(self) -> None:
        """Prepare to filter the page or to fetch the file. Raise Refused, and record it."""
        request = self.authorized.request
        if request.chunked or request.length:
            raise Refused("a request to a filtered registry has no body", status=400, rule=self._verdict.rule)
        request.upgrade = None
        try:
            found = await self._find()
            if isinstance(found, UnreadPage):
                what = f"no page of {found.package} leads to this file" if found.package else "it has no config.json"
                raise Refused(what, rule="registry", hint=READ_FIRST)
        except Refused as refused:
            refused.number = self.record(refused.reason) if refused.number is None else refused.number
            refused.rule = self._verdict.rule
            raise
        if isinstance(found, Page):
            self._page = PageFilter(self, found)
        elif found is not None:
            self._fetch(found)

    async def _find(self) -> Page | PackageFile | UnreadPage | None:
        """Judge the request.

        First read the page that should link it: a file's page, or for a page of crates the index's configuration with
        the place of the files.
        """
        found = self.network.files.judge(self._rule, self.authorized)
        if not isinstance(found, UnreadPage):
            return found
        await self._read_page(found)
        return self.network.files.judge(self._rule, self.authorized)

    def _fetch(self, kept: PackageFile) -> None:
        packages, key = self.network.gateway.packages, key_of(self.authorized, kept.digest)
        if packages is not None and key is not None:
            self._file = CachedFile(self, packages, key)
        rule = self._rule
        if rule.registry != "debian" or (rule.cooldown_days is None and rule.unknown_age is None):
            self.record(None, kept=kept)
        else:
            self._undated = kept

    def request(self, bound: set[bytes]) -> Request:
        """Return the request with only the fields that the answer depends on, and `bound` ones: credentials with a
        secret."""
        page, request = self._page, self.authorized.request
        asked = [one for one in request.fields if one[0].lower() in _ASKED and len(one[1]) <= _MOST_ASKED_BYTES]
        coding, asked = (b"identity", asked) if page is None else (b"gzip", page.fields())
        passed = [one for one in request.fields if one[0].lower() in bound - _ASKED]
        fields = [(b"User-Agent", b"paddock"), (b"Accept-Encoding", coding), *asked, *passed]
        return msgspec.structs.replace(request, fields=fields)

    async def recall(self, relay: Relay) -> bool | None:
        """Answer from the package cache, and return whether the connection can go on. Return None if the relay must
        contact the registry."""
        answer, client = self._file or self._page, self._connection.client
        found = None if answer is None else answer.recall()
        if found is None:
            return None
        response, content = found
        self._connection.upstream = content
        client.watch(True)
        try:
            goes_on = self.is_our_own or await relay.give(response, content)
        finally:
            client.watch(False)
            self._connection.upstream = None
        self._delivered = True
        return goes_on

    def may_connect(self, address: str) -> bool:
        return self.network.may_connect(self.authorized.target, address)

    async def receive(self, relay: Relay, response: Response, server: ProxyStream) -> bool:
        """Pass on the registry's answer: a filtered page, or a file, which the cache keeps. Raise Refused."""
        if self._page is not None:
            content = await self._page.read(relay, response, server)
            return self.is_our_own or await relay.give(response, content)
        self._admit(response)
        kept = None if self._file is None else self._file.keep(response, server.address)
        goes_on = await relay.give(response, server, kept)
        self._delivered = kept is not None
        return goes_on

    def _admit(self, response: Response) -> None:
        """Check the age that an answer's head says. Raise Refused, and record it."""
        kept = self._undated
        if kept is None or response.status not in (200, 206):
            return
        try:
            self.network.files.check_age(self._rule, kept, published_at(response.get(b"last-modified")))
        except Refused as refused:
            refused.number = self.record(refused.reason, kept=kept)
            raise
        self.record(None, kept=kept)

    async def _read_page(self, unread: UnreadPage) -> None:
        """Read the page that should lead to a file: a lock file names only the file. If that fails, the page stays
        unread."""
        here, network, policy = self.authorized.target, self.network, self.network.policy
        host = next(iter(self._rule.hosts or ())) if unread.package else here.host
        target = here if host == here.host else Target(host, _PORT)
        scheme = self.authorized.scheme if target == here else "https"
        verdict = policy.request(target, scheme, "GET", unread.path)
        if not (verdict.allowed and verdict.filtered and verdict.item == self._verdict.item):
            return
        if verdict.approve is not None or not policy.connect(target).allowed:
            return
        number = network.decide("request", self._connection.flow, target, verdict, method="GET", path=unread.path)
        own = [one for one in self.authorized.request.fields if one[0].lower() == b"authorization" and target == here]
        page_request = Request(method="GET", target=unread.path, fields=own)
        authorized = AuthorizedRequest(page_request, target, scheme, unread.path, verdict)
        inner = RegistryFilter(self._connection, authorized, is_our_own=True)
        relay = Relay(self._connection, authorized, inner)
        error = None
        try:
            found = await inner._find()
            if isinstance(found, Page):
                inner._page = PageFilter(inner, found)
                await relay.forward()
        except Refused as refused:
            error = refused.reason
            if refused.status == 403:
                raise
        finally:
            relay.close()
            network.outcome(number, sent=0, received=0, error=error)

    # -- records -------------------------------------------------------------------------------------------------------

    def record(self, refused: str | None, *, kept: PackageFile | None = None, held: str = "") -> int:
        verdict, network = self._verdict, self.network
        reason = refused or (f"{verdict.reason}; held back: {held}" if held else verdict.reason)
        authorized = msgspec.structs.replace(verdict, allowed=refused is None, reason=reason)
        what = None if kept is None else f"{kept.package} {kept.version}".rstrip()
        digest, malware = None if kept is None else kept.digest, network.files.digest(self._rule)
        about = {"package": what, "digest": digest, "malware": malware}
        return network.decide("registry", self._connection.flow, self.authorized.target, authorized, **about)


class PageFilter:
    """The filter of one page. It also asks for it, so that the answer's form is one that it can read."""

    def __init__(self, gate: RegistryFilter, page: Page) -> None:
        self._gate, self._page, self._network = gate, page, gate.network
        self._verdict = gate.authorized.verdict
        packages = self._network.gateway.packages
        self._store = None if gate.authorized.may_be_personal(cache.PERSONAL_FIELDS) else packages
        self._found = None if self._store is None else cache.find_page(self._store, page)
        self._address = ""
        """The address of the page's server."""
        self.how: str | None = None
        """The action of the cache, for the records."""

    def fields(self) -> Fields:
        """Return the fields that ask for the page."""
        etag = None if self._found is None else self._found.etag
        accept = (b"Accept", PROTOCOLS[self._page.rule.registry or ""].ACCEPT)
        return [accept] if etag is None else [accept, (b"If-None-Match", etag)]

    def recall(self) -> tuple[Response, StoredContent] | None:
        """Return a cached page that is still fresh. Raises Refused."""
        store, found = self._store, self._found
        if store is None or found is None or not found.checked_at <= store.clock() <= found.until:
            return None
        if not self._gate.may_connect(found.address):
            return None
        self.how, self._address, response = "page", found.address, whole([], 0)
        return response, self._written(response, found.answer)

    async def read(self, relay: Relay, response: Response, server: ProxyStream) -> StoredContent:
        """Return the filtered body, and set up `response` as its head. Raises Refused."""
        self._address = server.address
        if response.status == 304 and self._found is not None:
            answer = self._reuse(response, self._found, self._found.etag)
            response.status, response.phrase, response.bodiless = 200, b"OK", False
        elif response.status == 200 or response.status in (301, 302, 303, 307, 308) or response.status >= 400:
            try:
                content, answer = await self._collect(response, server), Answer()
            except ConnectionLost as lost:
                raise relay.unanswered(lost, begun=True) from None
            if response.status == 200 and not response.bodiless:
                answer = await self._look(response, content)
        else:
            raise self._refused(f"the index answered {response.status}, which can't be looked into")
        self._network.check_revision(self._verdict)
        return self._written(response, answer)

    def _keep(self, response: Response, read: cache.Read) -> Answer:
        if self._store is not None:
            cache.keep_page(self._store, self._page, response, read)
        return read.answer

    def _reuse(self, response: Response, found: cache.Read, etag: bytes | None) -> Answer:
        """Keep a page of the cache for longer."""
        self.how = "page"
        return self._keep(response, msgspec.structs.replace(found, etag=etag, address=self._address))

    def _written(self, response: Response, answer: Answer) -> StoredContent:
        """Set up the head for an answer of the reader, and return the body. Raise Refused if the sandbox may see none
        of it."""
        page, files = self._page, self._network.files
        if page.rule.registry == "crates" and not page.package:
            files.add_downloads(page, answer.downloads)
        files.add(answer.files, self._verdict.revision)
        if response.status == 200 and page.package:
            number = self._gate.record(answer.nothing, kept=PackageFile(page.package, ""), held=answer.held)
            if answer.nothing is not None:
                raise Refused(answer.nothing, rule=self._verdict.rule, number=number)
        response.fields = [field for field in response.fields if field[0].lower() in _RESPONSE_FIELDS]
        response.fields.append((b"Cache-Control", b"no-cache"))
        response.chunked, response.length = False, None if response.bodiless else len(answer.body)
        if answer.kind:
            response.fields += [(b"Content-Type", answer.kind.encode()), (b"Vary", b"Accept")]
        starts = range(0, len(answer.body), cache.PIECE_BYTES)
        pieces = (answer.body[start : start + cache.PIECE_BYTES] for start in starts)
        return StoredContent(pieces, self._address, self._network.turn)

    async def _look(self, response: Response, content: bytes) -> Answer:
        coding = (response.get(b"content-encoding") or b"").strip().lower()
        if coding not in (b"", b"identity", b"gzip", b"x-gzip"):
            raise self._refused("the index's page is malformed: it is encoded in a way that was not asked for")
        kind = (response.get(b"content-type") or b"").partition(b";")[0].strip().lower().decode("latin-1")
        digest, etag, found = hashlib.sha256(content).digest(), response.get(b"etag"), self._found
        if found is not None and (found.content, found.kind) == (digest, kind):
            return self._reuse(response, found, etag)
        job = Job(page=self._page, kind=kind, gzip=coding.endswith(b"gzip"), body=content)
        answer = await self._network.gateway.reader.read(job, self._network.files.turn)
        if answer.malformed is not None:
            raise self._refused(f"the index's page is malformed: {answer.malformed}")
        at, where = self._page.now, self._address
        read = cache.Read(kind=kind, content=digest, etag=etag, checked_at=at, answer=answer, address=where)
        return self._keep(response, read)

    async def _collect(self, response: Response, server: ProxyStream) -> bytes:
        """Read the whole page, as it came."""
        body, content, files = server.body(response), bytearray(), self._network.files
        held = 0
        try:
            while True:
                content += body.take(server.buffer)
                files.held += len(content) - held
                held = len(content)
                if held > MOST_PAGE_BYTES:
                    raise self._refused(f"the index's page is malformed: more than {MOST_PAGE_BYTES >> 20} MiB")
                if files.held > _MOST_HELD_BYTES:
                    raise Refused("too many pages are read at once", status=503, rule="registry", hint="try again")
                if body.done:
                    return bytes(content)
                if not await server.more():
                    body.end()
        except BadMessage as error:
            raise self._refused(f"the index's page is malformed: {error}") from None
        finally:
            files.held -= held

    def _refused(self, why: str) -> Refused:
        return Refused(why, status=502, rule=self._verdict.rule)


_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}")
_PERSONAL_OR_PARTIAL = cache.PERSONAL_FIELDS | CONDITIONS | {b"a-im"}
_KEPT_FIELDS = frozenset({b"content-type", b"etag", b"last-modified"})


def key_of(authorized: AuthorizedRequest, digest: str | None) -> tuple[str, str] | None:
    """Return a file's URL and the digest of its bytes, or None if it isn't cached. An answer that may depend on the
    client is never shared."""
    request, target = authorized.request, authorized.target
    if digest is None or not _DIGEST.fullmatch(digest) or authorized.verdict.mock or request.chunked or request.length:
        return None
    if authorized.may_be_personal(_PERSONAL_OR_PARTIAL):
        return None
    return f"https://{target.host}:{target.port}{authorized.path}", digest


class CachedFile:
    """One file for one request: from the disk, or copied to it while it passes.

    `key` is its URL and digest.
    """

    def __init__(self, gate: RegistryFilter, store: cache.PackageStore, key: tuple[str, str]) -> None:
        self._gate, self._store, self.key = gate, store, key
        self._copy: cache.Copy | None = None
        self._draft: cache.Draft | None = None
        self.how: str | None = None
        """The action of the cache, for the records."""

    def close(self) -> None:
        """Release the request's resources."""
        if self._copy is not None:
            self._copy.close()
        if self._draft is not None:
            self._draft.discard()
            self.how = self._draft.how

    def recall(self) -> tuple[Response, StoredContent] | None:
        """Return the file from the disk, if it is there."""
        copy = self._copy = self._store.find(*self.key)
        if copy is None or not self._gate.may_connect(copy.entry.address):
            return None
        try:
            content = StoredContent(copy.pieces(), copy.entry.address, self._gate.network.turn)
        except cache.Broken:
            return None
        self.how = "hit"
        return whole(copy.entry.fields, copy.entry.size), content

    def keep(self, response: Response, address: str) -> cache.Draft | None:
        """Return the filter that keeps an answer from `address` while it passes, or None if it isn't kept."""
        why = _unfit(response)
        if why is None:
            fields = [field for field in response.fields if field[0].lower() in _KEPT_FIELDS]
            url, digest = self.key
            entry = cache.Entry(url=url, digest=digest, size=response.length or 0, address=address, fields=fields)
            try:
                self._draft = self._store.begin(entry)
            except cache.CacheFull as error:
                why = str(error)
        if why is not None:
            self.how = f"not kept: {why}"
        return self._draft


def _unfit(response: Response) -> str | None:
    """Say why an answer isn't kept."""
    if response.status != 200:
        return f"the answer was {response.status}"
    if not response.length or response.chunked:
        return "the answer has no length"
    if (response.get(b"content-encoding") or b"identity").strip().lower() != b"identity":
        return "the answer is encoded"
    if cache.is_for_one(response):
        return "the answer is for one only"
    return None


def whole(fields: Fields, size: int) -> Response:
    """Return the head of an answer that is complete."""
    return Response(status=200, phrase=b"OK", fields=list(fields), length=size)
