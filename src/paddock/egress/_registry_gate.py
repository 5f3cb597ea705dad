"""One request to a judged registry, before it goes anywhere: recorded with package and version, and refused or not."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from paddock.model.egress import RequestVerdict, Target, Verdict

from ._http1 import Request, Response
from ._package_cache import Packaged, wanted
from ._page_memory import is_anybodys
from ._refusal import Refused
from ._registry import Unread, published, unread
from ._registry_look import Look
from ._registry_page import Kept, Page
from ._registry_pypi import project_of
from ._relay import Relay

if TYPE_CHECKING:
    from ._connection import Connection

_PORT = 443


class RegistryGate:
    """For one request of `connection`."""

    def __init__(self, connection: Connection, verdict: RequestVerdict, target: Target, scheme: str, path: str) -> None:
        self._connection, self._room = connection, connection.room
        self._verdict, self._target, self._scheme, self._path = verdict, target, scheme, path
        self._asker = b""
        self._rule = connection.room.door.policy.registry(verdict.item or 0)

    def is_silent(self) -> bool:
        """Whether who asks says nothing of a page that is refused, but of one that is no page."""
        page = self._rule.registry == "pypi" and project_of(self._path) is not None
        return page and self._asker.startswith(b"pip/")

    async def judge(self, relay: Relay, request: Request) -> None:
        """`relay` looks through the page, or fetches the file. Refused, recorded."""
        if request.chunked or request.length:
            raise Refused("a request to a judged registry has no body", status=400, rule=self._verdict.rule)
        request.upgrade, relay.anew = None, True
        self._asker = (request.get(b"user-agent") or b"").lower()
        try:
            found = self._judge(request)
            if isinstance(found, Unread):
                await self._read_page(found, request)
                found = self._judge(request)
            if isinstance(found, Unread):
                what = f"no page of {found.package} leads to this file" if found.package else "it has no config.json"
                raise unread(what)
        except Refused as refused:
            refused.number = self._record(refused.reason) if refused.number is None else refused.number
            refused.rule = self._verdict.rule
            raise
        if isinstance(found, Page):
            relay.look = self._look(found, request)
        elif found is not None:
            self._fetch(found, relay, request)

    def _judge(self, request: Request) -> Page | Kept | Unread | None:
        return self._room.shelf.judge(self._rule, self._verdict, request, self._scheme, self._target, self._path)

    def _fetch(self, kept: Kept, relay: Relay, request: Request) -> None:
        packages = self._room.pages.packages
        file = wanted(request, self._verdict, self._scheme, self._target, self._path, kept.digest)
        if packages is not None and file is not None:
            relay.file = Packaged(self._connection, packages, file)
        rule, shelf = self._rule, self._room.shelf
        if rule.registry != "debian" or (rule.cooldown_days is None and rule.unknown_age is None):
            self._record(None, kept=kept)
            return

        def admit(response: Response) -> None:
            if response.status in (200, 206):
                try:
                    shelf.check_age(rule, kept, published(response.get(b"last-modified")))
                except Refused as refused:
                    refused.number = self._record(refused.reason, kept=kept)
                    raise
                self._record(None, kept=kept)

        relay.admit = admit

    def _look(self, page: Page, request: Request) -> Look:
        def record(nothing: str | None, held: str) -> int:
            return self._record(nothing, kept=Kept(page.package, ""), held=held)

        room = self._room
        packages, memory = room.pages.packages, None
        if packages is not None and is_anybodys(request, self._verdict, self._scheme):
            memory = packages.pages
        return Look(room.shelf, room.pages.reader, page, self._verdict, request, record, memory)

    async def _read_page(self, wanted: Unread, request: Request) -> None:
        """A lock file names files: what leads to one is asked for here then. Where that fails, it stays unread."""
        host = next(iter(self._rule.hosts or ())) if wanted.package else self._target.host
        target = self._target if host == self._target.host else Target(host, _PORT)
        scheme = self._scheme if target == self._target else "https"
        policy, room = self._room.door.policy, self._room
        verdict = policy.request(target, scheme, "GET", wanted.path)
        if not (verdict.allowed and verdict.filtered and verdict.item == self._verdict.item):
            return
        if verdict.approve is not None or not policy.connect(target).allowed:
            return
        digest = hashlib.sha256(wanted.path.encode()).hexdigest()[:16]
        number = room.decide("request", self._connection.flow, target, verdict, method="GET", path=digest)
        own = [field for field in request.fields if field[0].lower() == b"authorization" and target == self._target]
        asked = Request(
            method="GET",
            target=wanted.path,
            minor=1,
            fields=own,
            host=None,
            length=None,
            chunked=False,
            keep_alive=True,
            upgrade=None,
            expects=False,
        )
        inner = RegistryGate(self._connection, verdict, target, scheme, wanted.path)
        relay = Relay(self._connection, asked, target, scheme, silent=True)
        error = None
        try:
            found = inner._judge(asked)
            if isinstance(found, Unread):  # of an index of crates, which says itself where files are
                await inner._read_page(found, asked)
                found = inner._judge(asked)
            if isinstance(found, Page):
                relay.look, relay.anew = inner._look(found, asked), True
                await relay.forward(verdict, wanted.path)
        except Refused as refused:
            error = refused.reason
            if refused.status == 403:
                raise
        finally:
            relay.close()
            room.door.journal.outcome(number, sent=0, received=0, error=error)

    # -- records -------------------------------------------------------------------------------------------------------

    def _record(self, refused: str | None, *, kept: Kept | None = None, held: str = "") -> int:
        verdict, room = self._verdict, self._room
        reason = refused or (f"{verdict.reason}; held back: {held}" if held else verdict.reason)
        judged = Verdict(allowed=refused is None, rule=verdict.rule, reason=reason, revision=verdict.revision)
        what = None if kept is None else kept.package
        if kept is not None and kept.version:
            what = f"{kept.package} {kept.version}"
        return room.decide(
            "registry",
            self._connection.flow,
            self._target,
            judged,
            package=what,
            digest=None if kept is None else kept.digest,
            malware=room.shelf.digest(self._rule),
        )
