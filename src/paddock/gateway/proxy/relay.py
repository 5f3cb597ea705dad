"""Relays one authorized request to its server, and the answer back.

Bodies stream, in bounded memory.

It replaces placeholders of secrets by values on the way there, and values by placeholders on the way back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from paddock.errors import UnrecordedError
from paddock.gateway.mocks.recorder import RecordedExchange
from paddock.gateway.protocols.gzip import Undecodable
from paddock.gateway.protocols.http1 import Body, Response
from paddock.gateway.protocols.refusal import BadMessage, Refused, UpstreamFailed
from paddock.gateway.protocols.replacer import ChainedFilter
from paddock.gateway.registries.package_cache import Broken, Draft
from paddock.gateway.rules.authorization import AuthorizedRequest
from paddock.gateway.rules.overrides import FormWatch
from paddock.gateway.rules.redaction import ResponseRedaction
from paddock.gateway.rules.substitution import BUFFERED_BYTES, Substitution

from .h2_session import H2Stream, StreamFailed
from .stream import ConnectionLost, ProxyStream
from .websocket import EXTENSIONS, switch

if TYPE_CHECKING:
    from .connection import Connection
    from .registry_filter import RegistryFilter

_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
_MOST_INTERIM = 32


class _Stale(Exception):
    """The server ended a kept connection before its answer. `untouched`: it hasn't read the request."""

    def __init__(self, *, untouched: bool = False) -> None:
        super().__init__()
        self.untouched = untouched


class Relay:
    def __init__(
        self, connection: Connection, authorized: AuthorizedRequest, gate: RegistryFilter | None = None
    ) -> None:
        """Prepare one request. `gate`: it goes to a filtered registry, in the gateway's own words."""
        self._connection, self._network, self._client = connection, connection.network, connection.client
        self._authorized, self._request, self._target = authorized, authorized.request, authorized.target
        self._tls = authorized.scheme == "https"
        self._held, self._body, self._gate = 0, self._client.body(self._request), gate
        self._swap: Substitution | None = None
        self.watch: FormWatch | None = None
        """Checks the request's body before the relay sends it. Raises Refused."""
        self.exchanged: RecordedExchange | None = None
        """Keeps the answer."""
        self._silent = gate is not None and gate.is_our_own
        """Nothing goes to the client."""
        self._broken: Refused | None = None
        """Why this side could not go on with the request's body."""

    def close(self) -> None:
        """Release the request's resources."""
        self._network.hold(-self._held)
        if self._gate is not None:
            self._gate.close()

    async def collect(self, most: int = BUFFERED_BYTES) -> bytes:
        """Read the whole body, which the relay sends with its length. Raise Refused if it is larger than `most`."""
        request, content = self._request, await self.peek(most)
        if content is None:
            raise Refused(f"a body of more than {most} bytes can't be looked at as a whole", status=413, rule="body")
        if request.chunked or request.length is not None:
            request.chunked, request.length = False, len(content)
        self._body.trailers = []  # a body with a length has none
        return content

    async def peek(self, most: int) -> bytes | None:
        """Read the whole body, which the relay still sends, or return None if it is larger than `most`."""
        more = await self.begin(lambda _: len(self._body.begun) > most)
        return None if more else bytes(self._body.begun)

    async def begin(self, enough: Callable[[bytes], bool]) -> bool:
        """Read the body until `enough` accepts, which gets each new piece, or return False at its end.

        The relay sends these bytes with the rest.
        """
        request, client, body = self._request, self._client, self._body
        if request.expects and not body.done:
            client.respond(Response(status=100, phrase=b"Continue", fields=[]), keep_alive=True)
            client.send(b"")
            request.expects = False
            request.fields = [field for field in request.fields if field[0].lower() != b"expect"]
        while True:
            piece = body.take(client.buffer)
            self._network.hold(len(piece))
            self._held += len(piece)
            body.begun += piece
            if enough(piece):
                return True
            if body.done:
                return False
            if not await client.more():
                body.end()

    async def forward(self) -> bool:
        """Send the request and pass on the answer.

        Return whether the connection can go on. Raise Refused if there was no answer, or it couldn't send all.
        """
        request, client = self._request, self._client
        swap = self._swap = Substitution(self._network.secrets, self._authorized)
        path, request.fields = swap.target(self._authorized.path), swap.fields(request.fields)
        if request.upgrade is not None and self._network.secrets:
            request.fields = [field for field in request.fields if field[0].lower() != EXTENSIONS]
        filter = swap.body(request.fields)
        rewrites = filter is not None and filter.rewrites
        if rewrites and request.length is not None and request.length <= BUFFERED_BYTES:
            await self.collect()
        body = self._body
        body.filter, body.filter_trailers = filter, swap.trailers
        body.watch = None if self.watch is None else self.watch.feed
        content = body.take_filtered(client.buffer)
        while body.lags:
            await self._network.turn()
            content += body.take_filtered(client.buffer)
        if rewrites and (request.chunked or request.length is not None):
            request.chunked, request.length = not body.done, len(content) if body.done else None
        sent, last = request if self._gate is None else self._gate.request(swap.headers), body.last

        def begin(server: ProxyStream) -> None:
            server.ask(sent, path, self._authorized.host)
            server.send(content, last)

        return await self._send(begin)

    async def _send(self, begin: Callable[[ProxyStream], None]) -> bool:
        """Send the present part of the request by `begin`, and again if the server ended a kept connection."""
        if self._gate is not None and (goes_on := await self._gate.recall(self)) is not None:
            return goes_on
        complete = self._body.done  # what comes later can be sent only once
        repeatable = complete and self._request.method in _REPEATABLE
        upstream = self._pooled(repeatable=repeatable)
        while True:
            if upstream is None:
                upstream = await self._dial()
            self._connection.upstream = upstream
            try:
                return await self._converse(upstream, begin)
            except _Stale as stale:
                if not (upstream.reused and (repeatable or (stale.untouched and complete))):
                    raise UpstreamFailed(f"{self._target.host} ended the connection without an answer") from None
                upstream.close()
                upstream = None

    def _pooled(self, *, repeatable: bool) -> ProxyStream | None:
        connection, target = self._connection, self._target
        shared = self._network.pool.stream(target) if isinstance(connection.client, H2Stream) else None
        if shared is not None or connection.client.is_grpc:
            return shared
        return self._network.pool.take(target, tls=self._tls, repeatable=repeatable)

    async def _dial(self) -> ProxyStream:
        """Connect. A client that speaks HTTP/2 gets HTTP/2 to the server, if the server speaks it."""
        connection, target, network = self._connection, self._target, self._network
        speaks_h2 = isinstance(connection.client, H2Stream)

        def dial() -> Awaitable[ProxyStream]:
            return network.dial(connection.flow, target, literal=connection.literal, tls=self._tls, h2=speaks_h2)

        upstream = await (network.pool.reach(target, dial) if speaks_h2 else dial())
        if connection.client.is_grpc and not isinstance(upstream, H2Stream):
            upstream.close()
            raise UpstreamFailed(f"{target.host} does not speak HTTP/2, without which gRPC does not work")
        return upstream

    async def _converse(self, server: ProxyStream, begin: Callable[[ProxyStream], None]) -> bool:
        client, before = self._client, server.received
        client.guard(server)
        begin(server)
        sender: asyncio.Task[None] | None = None
        if self._body.done:
            client.watch(True)
        else:
            sender = self._network.loop.create_task(self._send_rest(server))
        try:
            response = await self._answer(server, before)
            goes_on = await self._receive(response, server)
        except (Refused, UnrecordedError):
            server.reset()  # nothing more of it can pass
            raise
        finally:
            client.guard(None)
            if sender is not None:
                await _settle(sender)
            client.watch(False)
        self._connection.upstream = None
        if self._body.done and response.keep_alive:
            self._network.pool.give(self._target, server, tls=self._tls)
        else:
            server.close()
        return goes_on and self._body.done

    async def _send_rest(self, server: ProxyStream) -> None:
        client, body = self._client, self._body
        try:
            while not body.done:
                if not body.lags and not await client.more():
                    body.end()
                if body.filter is not None or body.watch is not None:
                    await self._network.turn()
                server.send(body.take_filtered(client.buffer), body.last)
                await server.drain()
            client.watch(True)
        except Refused as refused:
            self._broken = refused
            server.reset("the request is refused")
        except ConnectionLost as error:
            server.reset(str(error))

    # -- and back ------------------------------------------------------------------------------------------------------

    async def _answer(self, server: ProxyStream, before: int) -> Response:
        """Read the final response's head, and pass on interim ones. `before`: bytes that the server had sent before."""
        self._connection.limit(self._network.limits.response, server)
        for _ in range(_MOST_INTERIM):
            try:
                response = await server.response(self._request.method)
            except ConnectionLost as lost:
                raise self.unanswered(lost, begun=server.received > before) from None
            except BadMessage as error:
                raise UpstreamFailed(f"the server's answer is malformed: {error}") from None
            book = self._network.secrets
            if book:
                await self._network.turn()  # other sandboxes wait while it searches
                response.phrase = book.redaction().whole(response.phrase)
            if response.status >= 200 or response.status == 101:
                return response
            if book:
                response.fields = book.redaction().fields(response.fields)
            if self._request.minor and not self._silent:
                self._client.respond(response, keep_alive=True)
                self._client.send(b"")
                await self._client.drain()
        raise UpstreamFailed("the server does not come to an answer")

    def unanswered(self, lost: ConnectionLost, *, begun: bool) -> Exception:
        """Return the reason why the server's answer isn't there. `begun`: a part of it is."""
        if self._client.error is not None:
            return lost
        if self._broken is not None:
            return self._broken
        if str(lost) == "too slow":
            return UpstreamFailed("the server did not answer in time", status=504)
        failed = lost.__cause__ if isinstance(lost.__cause__, StreamFailed) else None
        if begun or (failed is not None and not failed.untouched):
            return UpstreamFailed(f"the server broke off: {lost}")
        return _Stale(untouched=failed is not None)

    async def _receive(self, response: Response, server: ProxyStream) -> bool:
        if response.status == 101:
            self._connection.limit(None)
            network = self._network
            return await switch(
                self._request, response, self._client, server, network.secrets, self._swap, network.turn
            )
        return await (self.give(response, server) if self._gate is None else self._gate.receive(self, response, server))

    async def give(self, response: Response, source: ProxyStream, kept: Draft | None = None) -> bool:
        """Send an answer, whose body comes from `source`, without values of secrets.

        Of a body that is also `kept` it says nothing before a part is right. Return whether the connection can go on.
        Raise Refused if it has said nothing.
        """
        self._connection.limit(None)
        client, sent = self._client, self._client.sent
        body = source.body(response)
        body.filter = kept
        self._redact(response, body)
        goes_on = self._respond(response)
        try:
            while True:
                if body.filter is not None:
                    await self._network.turn()
                data = body.take_filtered(source.buffer)
                if data or body.done or kept is None:
                    if self.exchanged is not None:
                        self.exchanged.take(data)
                    client.send(data, body.last)
                await client.drain()
                if body.done:
                    return goes_on
                if not body.lags and not await source.more():
                    body.end()
        except (ConnectionLost, BadMessage, Undecodable, Broken) as error:
            if client.sent == sent and client.error is None:
                raise Refused(str(error), status=502, rule="cache") from None
            source.reset()
            client.reset()  # half of it is there: that it is half must be seen
            raise ConnectionLost(f"the answer was cut off: {error}") from None

    def _respond(self, response: Response) -> bool:
        """Begin the answer. Return whether the connection can go on after it."""
        request, goes_on = self._request, self._request.keep_alive
        if not response.bodiless and response.length is None:
            response.chunked = request.minor > 0  # what has no length ends by itself only in chunks
            goes_on = goes_on and response.chunked
        if self.exchanged is not None:
            self.exchanged.response = response
        self._client.respond(response, keep_alive=goes_on, minor=request.minor)
        return goes_on

    def _redact(self, response: Response, body: Body) -> None:
        """Remove values of secrets from an answer's head, and have them removed from its body."""
        book = self._network.secrets
        if not book:
            return
        redaction = book.redaction()
        try:
            returned = ResponseRedaction(redaction, response.fields)
        except Undecodable as error:
            raise Refused(f"the answer can't be looked into: {error}", status=502, rule="secret") from None
        response.fields = returned.fields
        if returned.rewrites:
            response.length = None
        body.filter = returned if body.filter is None else ChainedFilter(body.filter, returned)
        body.filter_trailers = redaction.fields


async def _settle(task: asyncio.Task[None]) -> None:
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
