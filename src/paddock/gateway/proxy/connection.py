"""One connection from inside, from its first byte to its end."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal

from paddock.errors import UnrecordedError
from paddock.gateway.protocols.dns import GATEWAY, is_synthetic
from paddock.gateway.protocols.http1 import Fields
from paddock.gateway.protocols.names import canonical, is_address
from paddock.gateway.protocols.refusal import BadMessage, Refused
from paddock.gateway.protocols.tls_hello import ACCESS_DENIED, Hello, looks_like_tls, read_hello
from paddock.gateway.rules.authorization import AuthorizedRequest
from paddock.model.egress import ConnectVerdict, Target, Tier, Verdict
from paddock.policy.network import Snapshot

from .exchange import Exchange
from .h2_session import MOST_STREAMS, Broken, H2Stream, Session
from .stream import ConnectionLost, ProxyStream, together

if TYPE_CHECKING:
    from .network import SandboxNetwork

PROXY_PORT = 3128
_SILENT_SECONDS = 0.3
_REFUSED_SECONDS = 2.0
_LINGER_SECONDS = 3.0
_STREAM_WINDOW = 65_535
_STREAMS_WINDOW = 1 << 20
_HTTP = re.compile(rb"[A-Z]{3,20} ")
_MAYBE_HTTP = re.compile(rb"[A-Z]{1,20}")
# Servers skip blank lines before a request, and many take any word for a method.
_METHOD = rb"\s*[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}"
_REQUEST_LINE = re.compile(_METHOD + rb"[\t ][^\n]*HTTP/[0-9.]+[\t ]*\r?\n")
_MAYBE_REQUEST_LINE = re.compile(rb"\s*|" + _METHOD + rb"(?:[\t ][^\n]*)?")
_MOST_LINE_BYTES = 64 << 10

Opening = Hello | Literal["http", "raw", "silent"]


class Connection:
    """One connection of a sandbox.

    `target` is its authorized target, and `authorized` the request under way.

    When the policy changes, the gateway authorizes both again.
    """

    def __init__(
        self, network: SandboxNetwork, client: ProxyStream, destination: tuple[str, int], *, flow: int | None = None
    ) -> None:
        """Serve `client`. `flow`: the number of the connection that it is a stream of."""
        self.network, self.client, self.destination = network, client, destination
        self.flow = network.next_flow() if flow is None else flow
        self._inside: H2Streams | None = None
        self.target: Target | None = None
        self.literal: str | None = None
        self.authorized: AuthorizedRequest | None = None
        self.upstream: ProxyStream | None = None
        self._tier: Tier | None = None
        self._decision: int | None = None
        self._deadline: float | None = None
        self._overdue = client
        self._seen, self._seen_at = 0, network.loop.time()
        self._why: str | None = None

    # -- changes from the network --------------------------------------------------------------------------------------

    def limit(self, seconds: float | None, client: ProxyStream | None = None) -> None:
        """Break off `client` (the client's) after so many seconds from now."""
        self._deadline = None if seconds is None else self.network.loop.time() + seconds
        self._overdue = client or self.client

    def tick(self, now: float) -> None:
        if self._inside is not None:
            for stream in list(self._inside.branches):
                stream.tick(now)
        seen = self.client.received + self.client.sent
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        if self._deadline is not None:
            if now > self._deadline:
                self._deadline = None
                self._why = self._why or "too slow"
                if self._inside is None or self._inside.left:
                    self._overdue.reset("too slow")
                else:
                    self._inside.leave("too slow")
        elif now - self._seen_at > self.network.limits.idle:
            self.cut("idle")

    def recheck(self, policy: Snapshot) -> None:
        if self.target is not None and not self._still_allowed(self.target, policy):
            self.cut("revised")
        elif self._inside is not None:
            for stream in list(self._inside.branches):
                stream.recheck(policy)

    def branch(self, stream: H2Stream) -> Connection:
        """Make the branch of a stream: the connection's decisions hold for the stream."""
        branch = Connection(self.network, stream, self.destination, flow=self.flow)
        branch.target, branch.literal, branch._tier = self.target, self.literal, self._tier
        return branch

    def _still_allowed(self, target: Target, policy: Snapshot) -> bool:
        verdict = policy.connect(target)
        if not verdict.allowed or verdict.tier is not self._tier:
            return False
        if self.upstream is not None and not self.network.may_connect(target, self.upstream.address):
            return False
        asked = self.authorized
        if asked is None:
            return True
        now, then = (
            policy.request(asked.target, asked.scheme, asked.request.method, asked.path, asked.is_push),
            asked.verdict,
        )
        if now.git is not None and not all(policy.push(now.item or 0, update.ref) for update in asked.pushed):
            return False
        if now.filtered and now.revision != then.revision:
            return False  # what it is about to see, or the file's page, was looked through for another policy
        return now.allowed and set(now.secrets) >= set(then.secrets) and now.approve in (None, then.approve)

    def cut(self, why: str) -> None:
        self._why = self._why or why
        if self._inside is not None:
            self.limit(_LINGER_SECONDS)
            return self._inside.leave(why)
        self.client.reset(why)
        if self.upstream is not None:
            self.upstream.reset(why)

    # -- its life ------------------------------------------------------------------------------------------------------

    async def run(self, work: Callable[[], Awaitable[object]] | None = None) -> None:
        error: str | None = None
        try:
            await (work or self._serve)()
        except Refused as refused:
            error = str(refused)
            self.client.reset(error)
        except (ConnectionLost, ssl.SSLError) as lost:
            error = str(lost)
        except UnrecordedError as unrecorded:
            error = unrecorded.message
            self.client.reset("unrecorded")
        except Exception as fault:
            error = f"{type(fault).__name__} in the gateway"
            self.client.reset(error)
            raise
        finally:
            self.client.guard(None)
            if self.upstream is not None:
                self.upstream.guard(None)
                self.upstream.close()
            self.client.close()
            self._record_end(self._why or error)

    def _record_end(self, error: str | None) -> None:
        if self._decision is not None:
            try:
                self.network.outcome(self._decision, sent=self.client.received, received=self.client.sent, error=error)
            except UnrecordedError:
                self.client.reset("unrecorded")

    async def _serve(self) -> None:
        host, port = self.destination
        self.limit(self.network.limits.first_byte)
        if host == GATEWAY and port == PROXY_PORT:
            asked = await Exchange(self, None, "http").run()
            if asked is not None:
                await self._go(*asked)
        elif not is_synthetic(host):
            await self._to(Target(host, port))
        elif (name := self.network.names.name(host)) is not None:
            with self.network.names.held(name):
                await self._to(Target(name, port))
        else:
            target = Target(host, port)
            await self._refuse(target, self._no("this address stands for no name (any more)", "synthetic"))

    def _no(self, reason: str, rule: str) -> Verdict:
        return Verdict(allowed=False, rule=rule, reason=reason, revision=self.network.policy.revision)

    async def _to(self, target: Target) -> None:
        verdict = self.allow(target)
        if verdict.allowed:
            await self._go(target, verdict)
        else:
            await self._refuse(target, verdict, recorded=True)

    async def _go(self, target: Target, verdict: ConnectVerdict) -> None:
        """Serve the allowed `target`, with all data from now on."""
        self.settle(target, verdict)
        self.limit(self.network.limits.first_byte)
        try:
            opening = await self._opening(_SILENT_SECONDS if verdict.tier is Tier.SPLICE else None)
            if isinstance(opening, Hello):
                self._identify(opening)
        except Refused as error:
            rule = "identity" if isinstance(error, BadMessage) else error.rule or "identity"
            return await self._refuse(target, self._no(str(error), rule))
        await self._pass(opening)

    def allow(self, target: Target) -> ConnectVerdict:
        """Return the verdict, and record it."""
        verdict = self.network.policy.connect(target)
        tier = None if verdict.tier is None else verdict.tier.value
        number = self.network.decide("connect", self.flow, target, verdict, tier=tier)
        self._decision = number if self._decision is None else self._decision
        return verdict

    def require(self, target: Target) -> ConnectVerdict:
        """Return the verdict, and record it. Raise Refused if it denies."""
        verdict = self.allow(target)
        if not verdict.allowed:
            raise Refused(verdict.reason, rule=verdict.rule)
        return verdict

    def settle(self, target: Target, verdict: ConnectVerdict) -> None:
        self.target, self._tier = target, verdict.tier
        self.literal = target.host if is_address(target.host) else None

    async def _pass(self, opening: Opening) -> None:
        target, tier = self.target, self._tier
        assert target is not None
        if opening == "http":
            await Exchange(self, target, "http").run()
        elif tier is Tier.SPLICE:
            await self._splice(target, opening)
        elif isinstance(opening, Hello):
            self.limit(self.network.limits.head)
            await self.client.shake(self.network.authority.context(target.host, h2=True))
            if self.client.protocol == "h2":
                self._inside = H2Streams(self, target)
                try:
                    await self._inside.run()
                finally:
                    self._inside = None
            else:
                await Exchange(self, target, "https").run()
        else:
            await self._refuse(target, self._no("neither TLS nor HTTP, and nothing else can be inspected", "protocol"))

    # -- its first bytes -----------------------------------------------------------------------------------------------

    async def _opening(self, silence: float | None) -> Opening:
        """Detect the client's protocol. After `silence` seconds the server may speak first. Raise BadMessage."""
        client = self.client
        if not client.buffer and silence is not None:
            try:
                async with asyncio.timeout(silence):
                    await client.more()
            except TimeoutError:
                return "silent"
        while True:
            buffer = client.buffer
            if buffer:
                if looks_like_tls(buffer):
                    hello = read_hello(buffer)
                    if hello is not None:
                        return hello
                elif _HTTP.match(buffer):
                    return "http"
                elif len(buffer) > 20 or not _MAYBE_HTTP.fullmatch(buffer):
                    return "raw"
            if not await client.more():
                if buffer and looks_like_tls(buffer):
                    raise BadMessage("a TLS hello that is cut short")
                return "raw" if buffer else "silent"

    def _identify(self, hello: Hello) -> None:
        """Check the name in a hello against the authorized name.

        A connection to an allowed address takes the name, if a rule allows it. Raise Refused.
        """
        target = self.target
        assert target is not None
        name = None if hello.server_name is None else canonical(hello.server_name)
        if self.literal is None and name is None:
            raise Refused(f"a TLS hello without a server name, on a connection to {target.host}")
        if self.literal is None and name != target.host:
            raise Refused(f"a TLS hello for {name} on a connection to {target.host}")
        if name is not None and name != target.host:
            named = Target(name, target.port)
            self.target, self._tier = named, self.require(named).tier
        if hello.hidden and self._tier is Tier.SPLICE:
            raise Refused("an encrypted client hello: the name that it hides can't be checked")

    # -- refusals ------------------------------------------------------------------------------------------------------

    async def _refuse(self, target: Target, verdict: Verdict, *, recorded: bool = False) -> None:
        """Refuse at once, in the protocol that the client speaks."""
        if not recorded:
            self._decision = self.network.decide("connect", self.flow, target, verdict)
        self._why = verdict.reason
        try:
            async with asyncio.timeout(_REFUSED_SECONDS):
                opening = await self._opening(None)
                head = await self.client.request(lambda: None) if opening == "http" else None
        except (TimeoutError, BadMessage):
            opening, head = "raw", None
        if isinstance(opening, Hello):
            self.client.write(ACCESS_DENIED)
        elif head is not None:
            head.keep_alive = False
            refused = Refused(verdict.reason, rule=verdict.rule, number=self._decision)
            await Exchange(self, target, "http").refuse(refused, head)
            return
        else:
            self.client.reset("refused")
            return
        await self.last_word()

    async def last_word(self) -> None:
        self.limit(_LINGER_SECONDS)
        await self.client.linger()
        self.limit(None)

    # -- bytes ---------------------------------------------------------------------------------------------------------

    async def _splice(self, target: Target, opening: Opening) -> None:
        self.limit(None)
        upstream = self.upstream = await self.network.dial(self.flow, target, literal=self.literal, tls=False)
        self.client.guard(upstream)
        upstream.guard(self.client)
        await together(upstream.pass_on(self.client), self._pass_on(upstream, opening))

    async def _pass_on(self, upstream: ProxyStream, opening: Opening) -> None:
        if opening == "silent":
            opening = await self._opening(None)
            if opening == "http":
                raise Refused("HTTP after the server spoke first: its host can't be checked")
            if isinstance(opening, Hello):
                self._identify(opening)
        if not isinstance(opening, Hello):
            await self._pass_first_line(upstream)
        await self.client.pass_on(upstream)

    async def _pass_first_line(self, upstream: ProxyStream) -> None:
        """Pass on the first line. Raise Refused before its end if it begins a request of HTTP."""
        client, line = self.client, bytearray()
        while _MAYBE_REQUEST_LINE.fullmatch(line):
            data = bytes(client.buffer)
            client.buffer.clear()
            if _REQUEST_LINE.match(line + data) or len(line) > _MOST_LINE_BYTES:
                raise Refused("HTTP that begins in an unusual way: its host can't be checked")
            line += data
            upstream.write(data)
            await upstream.drain()
            if not await client.more():
                return


class H2Streams(Session):
    """HTTP/2 on one connection from inside: each stream is a branch of it, with a separate exchange.

    `branches` are the open streams. `left`: there will be no more.
    """

    def __init__(self, connection: Connection, target: Target) -> None:
        self._connection, self._target, self._network = connection, target, connection.network
        self.branches: dict[Connection, asyncio.Task[None]] = {}
        self.left = False
        super().__init__(connection.client, client=False, window=_STREAM_WINDOW, streams_window=_STREAMS_WINDOW)

    async def run(self) -> None:
        """Serve the connection, and end all its streams at the end. Raises Lost."""
        connection = self._connection
        connection.limit(self._network.limits.keep_alive)
        why: Exception = ConnectionResetError("the client has left")
        try:
            await self.pump()
        except (Broken, ConnectionLost) as error:
            why = error
        finally:
            self.lose(why)
            for task in self.branches.values():
                task.cancel()
            if self.branches:
                await asyncio.wait(self.branches.values())
        if isinstance(why, ConnectionLost):
            raise why
        if self.left or isinstance(why, Broken):
            await connection.last_word()
        if isinstance(why, Broken):
            raise ConnectionLost(str(why))

    def leave(self, why: str) -> None:
        """Reset all streams and tell the client to go."""
        for branch in list(self.branches):
            branch.cut(why)
        self.go_away()
        self.left = True
        self._connection.client.stir()

    # -- streams -------------------------------------------------------------------------------------------------------

    def opened(self, stream: H2Stream, fields: Fields, ended: bool) -> None:
        network = self._network
        if network.streams >= network.limits.streams or len(self.branches) >= 2 * MOST_STREAMS:
            return stream.refuse()
        stream.asked(fields, ended=ended)
        branch = self._connection.branch(stream)
        exchange = Exchange(branch, self._target, "https")
        network.streams += 1
        self._connection.limit(None)
        self.branches[branch] = task = network.gateway.start(branch.run(exchange.run))
        task.add_done_callback(lambda _: self._ended(branch))

    def _ended(self, branch: Connection) -> None:
        del self.branches[branch]
        self._network.streams -= 1
        if not self.branches:
            self._connection.limit(self._network.limits.keep_alive)
