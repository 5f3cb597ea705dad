"""HTTP/1 of one connection from inside: each request is read, named, judged, recorded, and written anew for the
server that it names; each response comes back the same way. Bodies stream, in bounded memory."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

from paddock.errors import Unrecorded
from paddock.model.egress import ConnectVerdict, RequestVerdict, Target, Tier, Verdict

from ._body import Body, chunk, last_chunk
from ._http1 import (
    BadMessage,
    Request,
    Response,
    head_end,
    read_request,
    read_response,
    write_request,
    write_response,
)
from ._names import is_address
from ._refusal import Refusal, Refused, write_refusal
from ._target import PORTS, BadTarget, normal_path, read_authority, split_target
from ._upstream import Upstream
from ._wire import Lost, Wire

if TYPE_CHECKING:
    from ._connection import Connection

_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})


class _Stale(Exception):
    """The server ended a connection that was kept before it answered."""


class Exchange:
    """`target` None: an explicit proxy, where each request names its own."""

    def __init__(self, connection: Connection, target: Target | None, scheme: str) -> None:
        self._connection, self._room, self._wire = connection, connection.room, connection.wire
        self._fixed, self._scheme = target, scheme
        self._named: dict[str, Target] = {}
        self._bad: BadMessage | None = None

    async def run(self) -> tuple[Target, ConnectVerdict] | None:
        """Until either side has enough; or until CONNECT asks for a tunnel, which is allowed and said so."""
        connection, limits = self._connection, self._room.limits
        goes_on = True
        while goes_on:
            request = None
            try:
                head = await self._head()
                if head is None:
                    return None
                connection.limit(None)
                request = read_request(head)
                if self._fixed is None and request.method == "CONNECT":
                    return self._tunnel(request)
                goes_on = await self._pass(request)
            except BadMessage as error:
                goes_on = await self._refuse(Refused(str(error), status=400, rule="http"), None)
            except Refused as refused:
                goes_on = await self._refuse(refused, request)
            except Unrecorded as error:
                refused = Refused(error.message, status=503, rule="audit", hint=error.hint or "")
                goes_on = await self._refuse(refused, None)
            connection.limit(limits.keep_alive)
        return None

    async def _head(self) -> bytes | None:
        """None: the client has ended."""
        wire, begun = self._wire, False
        while (end := head_end(wire.buffer)) < 0:
            if wire.buffer and not begun:
                begun = True
                self._connection.limit(self._room.limits.head)
            if not await wire.more():
                return None
        return _take(wire, end)

    # -- what a request names ------------------------------------------------------------------------------------------

    def _name(self, request: Request) -> tuple[Target, str]:
        """Its target and path. Refused: the two or three places where it says so do not agree."""
        scheme, host, port, target = split_target(request.target, self._scheme)
        if scheme is not None and scheme != self._scheme:
            raise BadTarget(f"{scheme} in the request, {self._scheme} on the connection")
        if scheme is None and self._fixed is None:
            raise BadTarget("this is a proxy: it takes absolute URLs and CONNECT")
        named = None if request.host is None else self._host(request.host)
        if scheme is not None:
            absolute = Target(host, port)
            if named is not None and named != absolute:
                raise Refused(f"Host names {_shown(named)}, the URL {_shown(absolute)}", status=421, rule="identity")
            named = absolute
        target_of = self._fixed or named
        if named is None or target_of is None or named != target_of:
            other = "nothing" if named is None else _shown(named)
            connected = "" if target_of is None else f", the connection is to {_shown(target_of)}"
            raise Refused(f"the request names {other}{connected}", status=421, rule="identity")
        if target == "*" and request.method != "OPTIONS":
            raise BadTarget("only OPTIONS asks for *")
        return target_of, target if target == "*" else normal_path(target)

    def _host(self, text: str) -> Target:
        known = self._named.get(text)
        if known is None:
            known = Target(*read_authority(text, PORTS[self._scheme]))
            if len(self._named) < 16:
                self._named[text] = known
        return known

    # -- one request ---------------------------------------------------------------------------------------------------

    async def _pass(self, request: Request) -> bool:
        """Whether the connection goes on. Refused: nothing was sent to anybody."""
        connection, wire = self._connection, self._wire
        target, path = self._name(request)
        if self._fixed is None:
            self._allow(target)
        verdict = self._room.door.policy.request(target, self._scheme, request.method, path)
        number = self._decide(target, verdict, request.method, path)
        if not verdict.allowed:
            raise _numbered(Refused(verdict.reason, rule=verdict.rule), number)
        connection.request = (target, self._scheme, request.method, path)
        sent, received, error = wire.received, wire.sent, "cut"
        try:
            self._check_judges(verdict)
            goes_on = await self._forward(request, target, path)
            error = None
            return goes_on
        except Refused as refused:
            error = refused.reason
            raise _numbered(refused, number) from None
        except Lost as lost:
            error = str(lost)
            raise
        finally:
            connection.request = None
            self._room.door.journal.outcome(
                number, sent=wire.received - sent, received=wire.sent - received, error=error
            )

    def _allow(self, target: Target) -> None:
        """Of an explicit proxy's request: as a connection to `target` is."""
        connection = self._connection
        if connection.target != target:
            verdict = connection.allow(target)
            if not verdict.allowed:
                raise Refused(verdict.reason, rule=verdict.rule)
            if verdict.tier is Tier.MOCK:
                raise Refused("mocks are not answered by this version", status=501, rule="mock")
            connection.settle(target, verdict, literal=target.host if is_address(target.host) else None)

    def _decide(self, target: Target, verdict: Verdict, method: str, path: str) -> int:
        digest = hashlib.sha256(path.encode()).hexdigest()[:16]
        return self._room.decide("request", self._connection.flow, target, verdict, method=method, path=digest)

    def _check_judges(self, verdict: RequestVerdict) -> None:
        """What this gateway can't judge does not pass unjudged."""
        for name in ("registry", "git", "mock", "approve"):
            if getattr(verdict, name) is not None:
                raise Refused(
                    f"{verdict.rule} needs {name}, which this version of the gateway can't judge",
                    status=501,
                    rule=verdict.rule,
                )

    def _tunnel(self, request: Request) -> tuple[Target, ConnectVerdict]:
        target = Target(*read_authority(request.target, 0))
        if request.host is not None and Target(*read_authority(request.host, target.port)) != target:
            raise Refused("Host and CONNECT name two targets", status=421, rule="identity")
        verdict = self._connection.allow(target)
        if not verdict.allowed:
            raise Refused(verdict.reason, rule=verdict.rule)
        self._wire.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        return target, verdict

    # -- there ---------------------------------------------------------------------------------------------------------

    async def _forward(self, request: Request, target: Target, path: str) -> bool:
        wire, body = self._wire, Body(request)
        port = "" if target.port == PORTS[self._scheme] else f":{target.port}"
        host = f"[{target.host}]{port}" if ":" in target.host else f"{target.host}{port}"
        out = write_request(request, path, host)
        out += _framed(body.take(wire.buffer), body, request.chunked)
        repeatable = body.done and request.method in _REPEATABLE
        upstream = self._room.pool.take(target, tls=self._scheme == "https", repeatable=repeatable)
        while True:
            if upstream is None:
                upstream = await self._room.dial(
                    self._connection.flow, target, literal=self._connection.literal, tls=self._scheme == "https"
                )
            self._connection.upstream = upstream
            try:
                return await self._converse(request, body, upstream, out)
            except _Stale:
                if not (upstream.reused and repeatable):
                    raise Refused(f"{target.host} ended the connection without an answer", status=502) from None
                upstream.wire.close()
                upstream = None

    async def _converse(self, request: Request, body: Body, upstream: Upstream, out: bytearray) -> bool:
        wire, server, connection, before = self._wire, upstream.wire, self._connection, upstream.wire.received
        wire.guard(server)
        server.write(out)
        sender: asyncio.Task[None] | None = None
        if body.done:
            wire.watch(True)
        else:
            sender = self._room.loop.create_task(self._send(body, request.chunked, server))
        try:
            response = await self._answer(request, server, before)
            goes_on = await self._receive(request, response, server)
        finally:
            wire.guard(None)
            if sender is not None:
                await _settle(sender)
            wire.watch(False)
        complete = sender is None or body.done
        connection.upstream = None
        if complete and response.keep_alive:
            self._room.pool.give(upstream, tls=self._scheme == "https")
        else:
            server.close()
        return goes_on and complete

    async def _send(self, body: Body, chunked: bool, server: Wire) -> None:
        """The rest of a request's body."""
        wire = self._wire
        try:
            while not body.done:
                if not await wire.more():
                    body.end()
                server.write(_framed(body.take(wire.buffer), body, chunked))
                await server.drain()
            wire.watch(True)
        except BadMessage as error:
            self._bad = error
            server.reset("the request is malformed")
        except Lost as error:
            server.reset(str(error))

    # -- and back ------------------------------------------------------------------------------------------------------

    async def _answer(self, request: Request, server: Wire, before: int) -> Response:
        """The final response's head; interim ones are passed on. `before`: bytes that it had sent before."""
        self._connection.limit(self._room.limits.response, server)
        while True:
            try:
                head = await _server_head(server)
                response = read_response(head, request.method)
            except Lost as lost:
                if self._wire.error is not None:
                    raise
                if self._bad is not None:
                    raise Refused(str(self._bad), status=400, rule="http") from None
                if str(lost) == "too slow":
                    raise Refused("the server did not answer in time", status=504, rule="upstream") from None
                if server.received > before:
                    raise Refused(f"the server broke off: {lost}", status=502, rule="upstream") from None
                raise _Stale from None
            except BadMessage as error:
                server.reset()
                raise Refused(f"the server's answer is malformed: {error}", status=502, rule="upstream") from None
            if response.status >= 200 or response.status == 101:
                self._connection.limit(None)
                return response
            if request.minor:
                self._wire.write(write_response(response, keep_alive=True))

    async def _receive(self, request: Request, response: Response, server: Wire) -> bool:
        wire = self._wire
        if response.status == 101:
            return await self._switch(request, response, server)
        body = Body(response, to_the_end=True, extensions=True)
        goes_on = request.keep_alive
        if not response.bodiless and response.length is None:
            response.chunked = request.minor > 0  # what has no length ends by itself only in chunks
            goes_on = goes_on and response.chunked
        out = write_response(response, keep_alive=goes_on, minor=request.minor)
        chunked = response.chunked and not response.bodiless
        try:
            out += _framed(body.take(server.buffer), body, chunked)
            wire.write(out)
            while not body.done:
                await wire.drain()
                if not await server.more():
                    body.end()
                wire.write(_framed(body.take(server.buffer), body, chunked))
        except (Lost, BadMessage) as error:
            wire.reset()  # half of it is there: that it is half must be seen
            server.reset()
            raise Lost(f"the answer was cut off: {error}") from None
        await wire.drain()
        return goes_on

    async def _switch(self, request: Request, response: Response, server: Wire) -> bool:
        """WebSocket: judged as a request, then passed on as bytes."""
        if request.upgrade != b"websocket" or response.upgrade != b"websocket":
            server.reset()
            raise Refused("the server switched protocols, unasked", status=502, rule="upstream")
        self._wire.write(write_response(response, keep_alive=True))
        self._wire.watch(False)
        server.guard(self._wire)
        await self._wire.join(server)
        server.guard(None)
        return False

    # -- refusals ------------------------------------------------------------------------------------------------------

    async def _refuse(self, refused: Refused, request: Request | None) -> bool:
        """Says why, with the number of the record; whether the connection can go on after that."""
        connection = self._connection
        if refused.number is None and refused.rule != "audit":
            target, revision = connection.target or Target("", 0), self._room.door.policy.revision
            verdict = Verdict(allowed=False, rule=refused.rule, reason=refused.reason, revision=revision)
            refused.number = self._room.decide("request", connection.flow, target, verdict)
        refusal = Refusal(
            status=refused.status,
            id="none" if refused.number is None else str(refused.number),
            rule=refused.rule,
            reason=refused.reason,
            hint=refused.hint,
            approval=refused.approval,
        )
        goes_on = request is not None and request.keep_alive and not request.chunked and not request.length
        accept = None if request is None else request.get(b"accept")
        head_only = request is not None and request.method == "HEAD"
        self._wire.write(write_refusal(refusal, accept=accept, keep_alive=goes_on, head_only=head_only))
        if not goes_on:
            await connection.last_word()
        return goes_on


def _numbered(refused: Refused, number: int) -> Refused:
    refused.number = number
    return refused


def _take(wire: Wire, end: int) -> bytes:
    taken = bytes(wire.buffer[:end])
    del wire.buffer[:end]
    return taken


async def _server_head(server: Wire) -> bytes:
    while (end := head_end(server.buffer)) < 0:
        if not await server.more():
            raise Lost("it ended before its answer did")
    return _take(server, end)


def _framed(data: bytes, body: Body, chunked: bool) -> bytes:
    if not chunked:
        return data
    return (chunk(data) if data else b"") + (last_chunk(body.trailers) if body.done else b"")


async def _settle(task: asyncio.Task[None]) -> None:
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass


def _shown(target: Target) -> str:
    return f"{target.host}:{target.port}"
