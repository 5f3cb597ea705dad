"""Connections to servers. It resolves a name once, connects to the checked address, and verifies the certificate.

A sandbox uses them again: those of HTTP/1.1 in turn, those of HTTP/2 by several streams at once.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Awaitable, Callable

from paddock.gateway.outside import Outside
from paddock.gateway.protocols.refusal import Refused, UpstreamFailed
from paddock.model.egress import Target, Verdict

from .h2_session import Broken, H2Stream, Session
from .stream import ConnectionLost, ProxyStream

DIAL_SECONDS = 10.0
MOST_ADDRESSES = 8

Check = Callable[[str], Verdict]
"""Tells whether the gateway may connect to an address, and records it. Raises UnrecordedError."""


class Dialer:
    """Makes upstreams. A gateway has one."""

    def __init__(self, scratch: memoryview, outside: Outside) -> None:
        self._scratch, self._outside = scratch, outside
        self._trust: dict[bool, ssl.SSLContext] = {}

    async def dial(
        self,
        target: Target,
        *,
        literal: str | None,
        tls: bool,
        check: Check,
        lookups: asyncio.Semaphore,
        h2: bool = False,
    ) -> ProxyStream:
        """Connect to a target.

        `literal`: use this address. `h2`: offer HTTP/2. `lookups` bounds the sandbox's names that the resolver has at
        once. Raise Refused with the reason of a failure.
        """
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                addresses = [literal] if literal else await self._resolve(target.host, lookups)
                verdicts = {address: check(address) for address in addresses[:MOST_ADDRESSES]}
                allowed = [address for address, verdict in verdicts.items() if verdict.allowed]
                if not allowed:
                    why = next(iter(verdicts.values())).reason if verdicts else "it has none"
                    raise Refused(f"no address of {target.host} may be connected to: {why}", rule="address")
                stream = await self._connect(allowed, target)
                if tls:
                    await self._shake(stream, target, h2=h2)
        except TimeoutError:
            raise UpstreamFailed(
                f"{target.host}:{target.port} did not answer within {DIAL_SECONDS:.0f} s", status=504
            ) from None
        return stream

    async def _resolve(self, name: str, lookups: asyncio.Semaphore) -> list[str]:
        def end(lookup: asyncio.Future[list[str]]) -> None:
            lookups.release()
            if not lookup.cancelled():
                lookup.exception()  # nothing waits for it after a time limit

        await lookups.acquire()
        lookup = asyncio.ensure_future(self._outside.resolve(name))
        lookup.add_done_callback(end)
        try:
            return await asyncio.shield(lookup)  # the resolver doesn't stop early
        except (OSError, UnicodeError) as error:
            raise UpstreamFailed(f"{name} can't be resolved: {_words(error)}") from None

    async def _connect(self, addresses: list[str], target: Target) -> ProxyStream:
        why: OSError | None = None
        for address in addresses:
            try:
                sock = await self._outside.reach(address, target.port)
            except OSError as error:
                why = error
            else:
                stream = ProxyStream(self._scratch, address)
                await stream.attach(sock)
                return stream
        raise UpstreamFailed(f"{target.host}:{target.port} can't be reached: {_words(why)}") from None

    async def _shake(self, stream: ProxyStream, target: Target, *, h2: bool) -> None:
        if h2 not in self._trust:
            context = self._trust[h2] = trusting(self._outside.authorities)
            context.set_alpn_protocols(["h2", "http/1.1"] if h2 else ["http/1.1"])
        try:
            await stream.shake(self._trust[h2], name=target.host)
        except BaseException as error:
            stream.reset()
            if not isinstance(error, (ssl.SSLError, ConnectionLost)):
                raise
            raise UpstreamFailed(f"TLS with {target.host}:{target.port} failed: {_words(error)}") from None


def trusting(authorities: str | None) -> ssl.SSLContext:
    """Return a context for servers that these authorities sign, or by default the machine's. ssl.SSLError: no PEM."""
    context = ssl.create_default_context() if authorities is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if authorities is not None:  # even if there is none among them: the machine's are never trusted then
        context.load_verify_locations(cadata=authorities)
    return context


def _words(error: Exception | None) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate can't be trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error).lower().replace("_", " ")
    if isinstance(error, OSError) and error.errno in errno.errorcode:
        return str(error.strerror).lower()
    return str(error)


_WINDOW, _STREAMS_WINDOW = 1 << 20, 4 << 20
_MOST_IDLE, _MOST_PLAIN = 64, 1024
_IDLE_SECONDS, _FRESH_SECONDS = 30.0, 1.0


class Link(Session):
    """A connection of HTTP/2. `retired`: it takes no new streams, and ends with its last."""

    def __init__(self, upstream: ProxyStream) -> None:
        super().__init__(upstream, client=True, window=_WINDOW, streams_window=_STREAMS_WINDOW)
        self._address = upstream.address
        self.retired = self._used = False
        self.idle_since = self.loop.time()
        self._task = self.loop.create_task(self._pump())

    def stream(self) -> H2Stream | None:
        """Open a stream, or return None if the connection takes no more at present."""
        if self.retired or self.refused_above is not None or self.full:
            return None
        stream = self.open(self._address)
        stream.reused, self._used = self._used, True
        return stream

    async def _pump(self) -> None:
        why = ConnectionResetError("the server has left")
        try:
            await self.pump()
        except (ConnectionLost, Broken) as error:
            why = ConnectionResetError(str(error))
        except Exception as fault:
            self.loop.call_exception_handler({"message": "a connection to a server failed", "exception": fault})
            why = ConnectionResetError(f"{type(fault).__name__} in the gateway")
        finally:
            self.retired = True
            self.lose(why)
            self.connection.close()

    def close(self) -> None:
        """Tell the server so."""
        self.retired = True
        self.go_away()
        self.lose(ConnectionResetError("closed"))
        self.connection.close()

    def reset(self, why: str) -> None:
        self.retired = True
        self.connection.reset(why)


class Pool:
    """The connections of one sandbox, which no other sandbox's requests ever use."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle: dict[tuple[Target, bool], list[ProxyStream]] = {}
        self._links: dict[Target, list[Link]] = {}
        self._plain: dict[Target, None] = {}
        """Servers that don't take HTTP/2."""
        self._dialling: dict[Target, asyncio.Future[Refused | None]] = {}

    def take(self, target: Target, *, tls: bool, repeatable: bool) -> ProxyStream | None:
        """Take an open HTTP/1.1 connection, or return None.

        The server may be about to close one, so an unrepeatable request gets only a fresh one.
        """
        idle = self._idle.get((target, tls))
        while idle:
            upstream = idle.pop()
            upstream.watch(False)
            age = self._loop.time() - upstream.idle_since
            if upstream.idle and age < (_IDLE_SECONDS if repeatable else _FRESH_SECONDS):
                upstream.reused = True
                return upstream
            upstream.close()
        return None

    def give(self, target: Target, upstream: ProxyStream, *, tls: bool) -> None:
        if isinstance(upstream, H2Stream) or sum(map(len, self._idle.values())) >= _MOST_IDLE or not upstream.idle:
            upstream.close()
            return
        upstream.idle_since = self._loop.time()
        self._idle.setdefault((target, tls), []).append(upstream)
        upstream.watch(True)

    def stream(self, target: Target) -> H2Stream | None:
        """Open a stream of a connection of HTTP/2."""
        for link in self._links.get(target, ()):
            stream = link.stream()
            if stream is not None:
                return stream
        return None

    async def reach(self, target: Target, dial: Callable[[], Awaitable[ProxyStream]]) -> ProxyStream:
        """Return a stream if the server takes HTTP/2, which `dial` offers, or else the connection. Requests for one
        server share a dial. Raise Refused."""
        while target not in self._plain:
            stream = self.stream(target)
            if stream is not None:
                return stream
            dialling = self._dialling.get(target)
            if dialling is None:
                return await self._dial(target, dial)
            refused = await asyncio.shield(dialling)
            if refused is not None:
                raise Refused(refused.reason, status=refused.status, rule=refused.rule)
        return await dial()

    async def _dial(self, target: Target, dial: Callable[[], Awaitable[ProxyStream]]) -> ProxyStream:
        finished = self._dialling[target] = self._loop.create_future()
        outcome: Refused | None = None
        try:
            upstream = await dial()
            if upstream.protocol != "h2":
                if len(self._plain) >= _MOST_PLAIN:
                    del self._plain[next(iter(self._plain))]
                self._plain[target] = None
                return upstream
            link = Link(upstream)
            self._links.setdefault(target, []).append(link)
            stream = link.stream()
            assert stream is not None
            return stream
        except Refused as refused:
            outcome = refused
            raise
        finally:
            del self._dialling[target]
            finished.set_result(outcome)

    def sweep(self, *, everything: bool = False) -> None:
        """Close connections that are idle for too long, have ended, or are too many. `everything`: all of them."""
        now, idle_links = self._loop.time(), 0
        for idle in self._idle.values():
            for upstream in list(idle):
                if everything or not upstream.idle or now - upstream.idle_since >= _IDLE_SECONDS:
                    idle.remove(upstream)
                    upstream.close()
        self._idle = {key: idle for key, idle in self._idle.items() if idle}
        if everything:
            self._plain.clear()
        for links in self._links.values():
            for link in list(links):
                link.retired = link.retired or everything
                if link.streams:
                    link.idle_since = now
                    continue
                idle_links += 1
                if link.retired or idle_links > _MOST_IDLE or now - link.idle_since > _IDLE_SECONDS:
                    link.close()
                    links.remove(link)
        self._links = {target: links for target, links in self._links.items() if links}

    def cut(self, why: str) -> None:
        """Break off all HTTP/2 connections, and close idle ones."""
        self.sweep(everything=True)
        for links in self._links.values():
            for link in links:
                link.reset(why)
        self._links.clear()
