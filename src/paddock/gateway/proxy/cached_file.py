"""Give out one file of a registry from the package cache, or keep it while it passes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from paddock.gateway.protocols.http1 import CONDITIONS, Fields, Request, Response
from paddock.gateway.registries import package_cache
from paddock.gateway.registries.package_cache import (
    NEVER_KEPT,
    OF_SOMEBODY,
    Broken,
    CacheFull,
    Copy,
    Draft,
    PackageStore,
)
from paddock.gateway.rules.authorization import AuthorizedRequest

from .stream import Lost

if TYPE_CHECKING:
    from .connection import Connection
    from .relay import Relay

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}")
_PERSONAL = OF_SOMEBODY | CONDITIONS | {b"a-im"}
_KEPT_FIELDS = frozenset({b"content-type", b"etag", b"last-modified"})


def wanted(authorized: AuthorizedRequest, digest: str | None) -> tuple[str, str] | None:
    """Return a file's URL and the digest of its bytes, or None if it isn't cached. An answer that may depend on the
    client is never shared."""
    request, target = authorized.request, authorized.target
    if digest is None or not _DIGEST.fullmatch(digest) or authorized.verdict.mock or request.chunked or request.length:
        return None
    if authorized.depends_on_who_asks(_PERSONAL):
        return None
    return f"https://{target.host}:{target.port}{authorized.path}", digest


class CachedFile:
    """One file for one request: from the disk, or copied to it while it passes.

    `given` is URL and digest of a file that the client has received to its end.
    """

    def __init__(self, connection: Connection, store: PackageStore, wanted: tuple[str, str]) -> None:
        self._connection, self._store, self._wanted = connection, store, wanted
        self._draft: Draft | None = None
        self._how: str | None = None
        self.given: tuple[str, str] | None = None

    @property
    def how(self) -> str | None:
        """Return the action of the cache, for the records."""
        return self._how if self._draft is None else self._draft.how

    def close(self) -> None:
        """Release the request's resources."""
        if self._draft is not None:
            self._draft.discard()

    def gave(self) -> None:
        """Note that the client has all of it."""
        self.given = self._wanted

    # -- from the disk -------------------------------------------------------------------------------------------------

    async def answer(self, request: Request, relay: Relay) -> bool | None:
        """Answer from the cache, and return whether the connection can go on.

        None: the caller must contact the upstream.
        """
        connection, copy = self._connection, self._store.find(*self._wanted)
        if copy is None:
            return None
        try:
            if connection.target is None or not connection.network.may_dial(connection.target, copy.entry.address):
                return None
            self._how, connection.source = "hit", copy.entry.address
            connection.client.watch(True)
            return await self._read_out(copy, request, relay)
        finally:
            copy.close()
            connection.client.watch(False)
            connection.source = None

    async def _read_out(self, copy: Copy, request: Request, relay: Relay) -> bool | None:
        """Read a file from the disk. Return None if it fails before the first byte of the answer."""
        client, entry, sent, buffer = self._connection.client, copy.entry, self._connection.client.sent, bytearray()
        response = whole(entry.fields, entry.size)
        body = relay.returning(response)
        if response.length is None:
            response.chunked = request.minor > 0
        goes_on = request.keep_alive and (response.chunked or response.length is not None)
        relay.respond(response, keep_alive=goes_on)
        try:
            for piece in copy.pieces():
                buffer += piece
                relay.send(body.take_filtered(buffer), body.last)
                await client.drain()
        except Broken as broken:
            self._store.drop(entry.key)
            if client.sent == sent:
                return None
            client.reset()
            raise Lost(f"the answer was cut off: {broken}") from None
        self.gave()
        return goes_on

    # -- from the upstream ---------------------------------------------------------------------------------------------

    def keep(self, response: Response, address: str) -> Draft | None:
        """Return the filter that keeps an answer from `address` while it passes, or None if it isn't kept."""
        why = _unfit(response)
        if why is None:
            fields = [field for field in response.fields if field[0].lower() in _KEPT_FIELDS]
            url, digest = self._wanted
            entry = package_cache.Entry(
                url=url, digest=digest, size=response.length or 0, address=address, fields=fields
            )
            try:
                self._draft = self._store.begin(entry)
            except CacheFull as error:
                why = str(error)
        if why is not None:
            self._how = f"not kept: {why}"
        return self._draft


def _unfit(response: Response) -> str | None:
    """Say why an answer isn't kept."""
    if response.status != 200:
        return f"the answer was {response.status}"
    if not response.length or response.chunked:
        return "the answer has no length"
    if (response.get(b"content-encoding") or b"identity").strip().lower() != b"identity":
        return "the answer is encoded"
    if NEVER_KEPT.search(response.get(b"cache-control") or b"") or response.get(b"set-cookie") is not None:
        return "the answer is for one only"
    return None


def whole(fields: Fields, size: int) -> Response:
    """Return the head of an answer that is complete."""
    return Response(status=200, phrase=b"OK", fields=list(fields), length=size)
