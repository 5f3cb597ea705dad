"""Registries whose rule holds something back: pages are read whole and written anew without it, and a file is fetched
only if such a page has led to it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

import msgspec

from paddock.model import Allow
from paddock.model.egress import EgressPolicy, RequestVerdict, Target

from . import _registry_npm as npm
from . import _registry_pypi as pypi
from ._body import Body
from ._coding import Gzip, Undecodable
from ._http1 import BadMessage, Request, Response
from ._refusal import Refused
from ._registry_page import File, Filtered, Malformed, NothingLeft, Page, is_listed
from ._wire import Wire

JUDGED = frozenset({"pypi", "npm"})
READING = frozenset({"GET", "HEAD"})
MOST_PAGE_BYTES = 64 << 20
_MOST_HELD_BYTES = 128 << 20
_MOST_FILES = 1 << 17
_BESIDE = (".metadata", ".asc")
_REQUEST_FIELDS = frozenset(
    {b"accept", b"accept-encoding", b"range", b"if-range", b"if-none-match", b"if-match", b"if-modified-since"}
    | {b"if-unmodified-since", b"a-im"}
)
_RESPONSE_FIELDS = frozenset({b"date", b"location", b"retry-after", b"www-authenticate", b"x-pypi-last-serial"})
_READ_FIRST = "its page has to be read through this gateway first, as installers do; then what it kept can be fetched"


class Shelf:
    """The files that pages have led to, of one sandbox and under one revision: those that were named last."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock, self._revision = clock, ""
        self._files: dict[bytes, str | None] = {}
        self.held = 0
        """Bytes of pages that are being read."""

    def judge(
        self, policy: EgressPolicy, verdict: RequestVerdict, request: Request, scheme: str, target: Target, path: str
    ) -> Look | None:
        """For a page, how its answer is to be looked through; None: a file that may be fetched as it is. Refused."""
        assert verdict.item is not None
        rule = policy.registry(verdict.item)
        request.upgrade = None
        package = pypi.project_of(path) if rule.registry == "pypi" else npm.package_of(path)
        if package is None:
            if not self.has((target.host, target.port, path), verdict):
                raise Refused(
                    "this is no page of a package, and no file that one has led to", rule=verdict.rule, hint=_READ_FIRST
                )
            return None
        if not is_listed(package, _listed(rule)):
            raise Refused(f"{package} is not one of the packages that the rule names", rule=verdict.rule)
        page = Page(
            scheme=scheme,
            host=target.host,
            port=target.port,
            path=path,
            package=package,
            rule=rule,
            now=self._clock(),
        )
        return Look(self, page, verdict, request)

    def has(self, file: File, verdict: RequestVerdict) -> bool:
        if self._revision != verdict.revision:
            return False
        host, port, path = file
        stems = [path, *(path.removesuffix(end) for end in _BESIDE if path.endswith(end))]
        return any(_key((host, port, stem), verdict) in self._files for stem in stems)

    def digest(self, verdict: RequestVerdict, target: Target, path: str) -> str | None:
        """Of a file, as the page that led to it said it."""
        if self._revision != verdict.revision:
            return None
        return self._files.get(_key((target.host, target.port, path), verdict))

    def add(self, files: frozenset[File], digests: dict[File, str], verdict: RequestVerdict) -> None:
        if self._revision != verdict.revision:
            self._files.clear()
            self._revision = verdict.revision
        for file in files | digests.keys():
            key = _key(file, verdict)
            self._files.pop(key, None)
            self._files[key] = digests.get(file)
        while len(self._files) > _MOST_FILES:
            del self._files[next(iter(self._files))]


class Look:
    """At one page. Made before it is asked for: the request asks for what can be looked through."""

    def __init__(self, shelf: Shelf, page: Page, verdict: RequestVerdict, request: Request) -> None:
        self._shelf, self._page, self._verdict = shelf, page, verdict
        self._accept = (request.get(b"accept") or b"").decode("latin-1").lower()
        wanted = pypi.ACCEPT if page.rule.registry == "pypi" else npm.ACCEPT
        request.fields = [field for field in request.fields if field[0].lower() not in _REQUEST_FIELDS]
        request.fields += [(b"Accept", wanted), (b"Accept-Encoding", b"gzip")]

    async def read(self, response: Response, server: Wire, revision: Callable[[], str]) -> bytes:
        """The body as it may be seen, with `response` made its head; `revision` is the policy's. Refused; Lost."""
        redirects = response.status in (301, 302, 303, 307, 308)
        if response.status != 200 and not redirects and response.status < 400:
            raise self._refused(f"the index answered {response.status}, which can't be looked into")
        try:
            content = await self._collect(response, server)
            filtered = self._filter(response, content) if response.status == 200 and not response.bodiless else None
        except (BadMessage, Malformed, Undecodable) as error:
            raise self._refused(f"the index's page is malformed: {error}") from None
        except NothingLeft as nothing:
            raise Refused(str(nothing), rule=self._verdict.rule) from None
        if revision() != self._verdict.revision:
            raise Refused("the policy has changed meanwhile", rule=self._verdict.rule, hint="try again")
        response.fields = [field for field in response.fields if field[0].lower() in _RESPONSE_FIELDS]
        response.fields.append((b"Cache-Control", b"no-cache"))
        response.chunked, response.length = False, None if response.bodiless else 0
        if filtered is None:
            return b""
        self._shelf.add(filtered.files, filtered.digests, self._verdict)
        response.fields += [(b"Content-Type", filtered.kind.encode()), (b"Vary", b"Accept")]
        response.length = len(filtered.body)
        return filtered.body

    def _filter(self, response: Response, content: bytes) -> Filtered:
        page, accept = self._page, self._accept
        if page.rule.registry == "npm":
            return npm.filter_document(page, content, accept)
        kind = (response.get(b"content-type") or b"").partition(b";")[0].strip().lower()
        if kind in (b"text/html", b"application/vnd.pypi.simple.v1+html"):
            return pypi.filter_html(page, content, accept)
        return pypi.filter_json(page, content, accept)

    async def _collect(self, response: Response, server: Wire) -> bytes:
        """All of it, decoded."""
        body, content, shelf = Body(response, to_the_end=True, extensions=True), bytearray(), self._shelf
        gzip, held = self._decoder(response), 0
        try:
            while True:
                piece = body.take(server.buffer)
                content += piece if gzip is None else gzip.decode(piece)
                shelf.held += len(content) - held
                held = len(content)
                if held > MOST_PAGE_BYTES:
                    raise Malformed(f"more than {MOST_PAGE_BYTES >> 20} MiB")
                if shelf.held > _MOST_HELD_BYTES:
                    raise Refused("too many pages are read at once", status=503, rule="registry", hint="try again")
                if body.done:
                    return bytes(content)
                if not await server.more():
                    body.end()
        finally:
            shelf.held -= held

    def _decoder(self, response: Response) -> Gzip | None:
        coding = (response.get(b"content-encoding") or b"").strip().lower()
        if coding in (b"", b"identity"):
            return None
        if coding not in (b"gzip", b"x-gzip"):
            raise Malformed("it is encoded in a way that was not asked for")
        return Gzip()

    def _refused(self, why: str) -> Refused:
        return Refused(why, status=502, rule=self._verdict.rule)


def _listed(rule: Allow) -> tuple[str, ...] | None:
    if rule.packages is None or rule.registry != "pypi":
        return rule.packages
    return tuple(pypi.normalised(pattern) for pattern in rule.packages)


def _key(file: File, verdict: RequestVerdict) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode((verdict.item, file))).digest()[:16]
