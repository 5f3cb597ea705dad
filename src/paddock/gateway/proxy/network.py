"""The exits of sandboxes while they are open: sockets, names, connections, their records; and the gateway of all."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import socket
import struct
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from paddock.audit import AuditLog
from paddock.errors import UnrecordedError
from paddock.gateway.authority import Authority
from paddock.gateway.mocks.answers import Mocks
from paddock.gateway.mocks.handler import HandlerHost
from paddock.gateway.mocks.recorder import Recorder
from paddock.gateway.outside import Outside
from paddock.gateway.processes.connection_owner import ConnectionOwners, record_event
from paddock.gateway.processes.process_resolver import First
from paddock.gateway.protocols.dns import MAX_QUERY_BYTES, Denied, SandboxNames, answer, frame, take_queries
from paddock.gateway.protocols.names import canonical, is_address
from paddock.gateway.protocols.refusal import BadMessage, Refused
from paddock.gateway.protocols.token_bucket import TokenBucket
from paddock.gateway.registries.files import KnownFiles
from paddock.gateway.registries.malware import MalwareIndexes
from paddock.gateway.registries.package_cache import PackageStore
from paddock.gateway.registries.reader import Reader
from paddock.gateway.rules.authorization import Claim
from paddock.gateway.rules.secrets import SecretBook
from paddock.linux.routes import is_own
from paddock.model import Recording
from paddock.model.egress import Target, Verdict
from paddock.policy.network import Snapshot, far_end

from .connection import Connection
from .stream import SCRATCH_BYTES, ConnectionLost, ProxyStream
from .upstream import Dialer, Pool

MOST_HELD_BYTES = 32 << 20
PATIENCE_SECONDS = 2.0
_TELL_SECONDS = 10.0
_MOST_LOOKUPS = 4
"""Names of one sandbox that the resolver has at once: a server outside can let it wait for long."""
_ACCEPT_AT_ONCE = 64
_PAUSE_SECONDS = 0.1
_OUT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_Serve = Callable[[Connection, socket.socket], Coroutine[Any, Any, None]]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one network, in seconds except for `connections`, `streams` (of HTTP/2) and `names_per_second` (new
    names).
    """

    connections: int = 512
    streams: int = 1024
    first_byte: float = 10.0
    head: float = 30.0
    keep_alive: float = 120.0
    response: float = 600.0
    idle: float = 900.0
    handler: float = 10.0
    names_per_second: float = 100.0


@dataclass(eq=False, kw_only=True)
class SandboxNetwork:
    """The network of one instance of a sandbox.

    Its sockets listen in the sandbox's network namespace.

    `Gateway.open` takes the sockets over. `policy` is the current one. `diag` finds the owners of connections. `first`
    is its pid 1: pid and start time. `process` is a pidfd of it.
    """

    gateway: Gateway
    sandbox: str
    instance_id: int
    tcp: Sequence[socket.socket]
    dns_udp: socket.socket
    dns_tcp: socket.socket
    policy: Snapshot
    authority: Authority
    secrets: SecretBook
    claim: Claim
    audit_log: AuditLog
    diag: socket.socket
    first: First
    process: int

    def __post_init__(self) -> None:
        gateway = self.gateway
        self.limits, self.loop = gateway.limits, gateway.loop
        self.names, self.pool, self.streams = SandboxNames(), Pool(), 0
        self.files = KnownFiles(gateway.malware)
        self.mocks = Mocks(gateway.handlers, self.secrets)
        self.recorder: Recorder | None = None
        self.live: set[Connection] = set()
        self.owners: dict[int, asyncio.Task[dict[str, Any]]] = {}
        """Pending questions about the owners of connections without a decision, by flow."""
        self.refused = self._told = 0
        """Refused connections over the limit. The gateway records them together, every now and then."""
        self._tell_at = self.loop.time()
        self._flows = self._held = 0
        self._watched = self._closed = False
        self._asked: dict[tuple[str, str], None] = {}
        self._turns = asyncio.Lock()
        self._lookups = asyncio.Semaphore(_MOST_LOOKUPS)
        rate = self.limits.names_per_second  # new names are a way to fill the log
        self._new_names = TokenBucket(rate, 10 * rate)

    # -- orders of the gateway and the daemon --------------------------------------------------------------------------

    def listen(self) -> None:
        for listener in self.tcp:
            self._listen(listener, self._serve)
        self._listen(self.dns_tcp, self._serve_names)
        self.dns_udp.setblocking(False)
        self.loop.add_reader(self.dns_udp, self._answer_names)

    async def revise(self, policy: Snapshot) -> None:
        """Put another policy in force. It returns after it has cut all connections that the policy refuses."""
        if policy.revision != self.policy.revision:
            self.mocks.end()
        self.policy = policy
        self.pool.sweep(everything=True)
        for connection in list(self.live):
            connection.recheck(policy)
        await self.watch()

    async def watch(self) -> None:
        """Report processes of the sandbox if it is open and its policy wants that, or else stop."""
        audit = self.policy.document.audit
        wanted = not self._closed and audit is not None and audit.processes
        if wanted != self._watched:
            self._watched = wanted
            await self.gateway.owners.watch(self.sandbox, self.instance_id, self.first if wanted else None)

    def record(self, on: bool) -> Recording | None:
        """Start a new recording, or return the finished one, or None without one."""
        before, self.recorder = self.recorder, Recorder(self.secrets) if on else None
        return None if before is None else before.take()

    def tick(self, now: float) -> None:
        for connection in list(self.live):
            connection.tick(now)
        self.pool.sweep()
        if now >= self._tell_at:
            self._tell_refused()

    def _tell_refused(self) -> None:
        untold = self.refused - self._told
        if not untold:
            return
        with suppress(UnrecordedError):  # nothing passes then; they are recorded when that is possible again
            self.audit_log.event("egress.crowded", sandbox=self.sandbox, instance_id=self.instance_id, refused=untold)
            self._told, self._tell_at = self.refused, self.loop.time() + _TELL_SECONDS

    async def close(self) -> None:
        for sock in (*self.tcp, self.dns_tcp, self.dns_udp, self.diag):
            self.loop.remove_reader(sock)
            sock.close()
        self.loop.remove_reader(self.process)
        os.close(self.process)
        self._tell_refused()
        self.mocks.end()
        for connection in list(self.live):
            connection.cut("closed")
        self.pool.cut("closed")
        self._closed = True
        await self.watch()

    # -- connections ---------------------------------------------------------------------------------------------------

    def _listen(self, listener: socket.socket, serve: _Serve) -> None:
        listener.setblocking(False)
        self.loop.add_reader(listener, self._accept, listener, serve)

    def _accept(self, listener: socket.socket, serve: _Serve) -> None:
        gateway = self.gateway
        for _ in range(_ACCEPT_AT_ONCE):
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in _OUT:  # they wait in the backlog until something is closed
                    self.loop.remove_reader(listener)
                    self.loop.call_later(_PAUSE_SECONDS, self._listen_again, listener, serve)
                return
            sock.setblocking(False)
            if len(self.live) >= self.limits.connections:
                self.refused += 1
                _reset(sock)
                continue
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                destination = ("", 53) if listener is self.dns_tcp else gateway.destination(sock)
                connection = Connection(self, ProxyStream(gateway.scratch, turn=self.turn), destination)
            except OSError:
                _reset(sock)
                continue
            self.live.add(connection)
            gateway.start(serve(connection, sock))

    def _listen_again(self, listener: socket.socket, serve: _Serve) -> None:
        if not self._closed:
            self._listen(listener, serve)

    async def _serve(self, connection: Connection, sock: socket.socket) -> None:
        try:
            await connection.client.attach(sock)
            await self._ask_who(connection, sock)
            await connection.run()
        finally:
            self.live.discard(connection)
            self.owners.pop(connection.flow, None)

    async def _ask_who(self, connection: Connection, sock: socket.socket) -> None:
        """Begin to ask which process made the connection.

        Return when the answer has come, or after a time limit.

        A program that waits for an answer can't end before the search: it gets no answer before this returns.
        """
        asking = self.gateway.owners.owner_of(self.diag, sock, connection.destination, self.sandbox, self.first)
        self.owners[connection.flow] = task = self.loop.create_task(asking)
        await asyncio.wait([task], timeout=PATIENCE_SECONDS)

    async def turn(self) -> None:
        """Wait until other sandboxes had their turn. All connections of this one have one together."""
        async with self._turns:
            await asyncio.sleep(0)

    def next_flow(self) -> int:
        self._flows += 1
        return self._flows

    def decide(self, kind: str, flow: int, target: Target, verdict: Verdict, **about: Any) -> int:
        """Record a verdict, and return its number.

        After UnrecordedError, the caller must not go on.

        `kind`: `name` (a query to the resolver), `connect`, `dial` (an address of the target), `request`, `push` (of
        git), `secret` (a misdirected placeholder), `registry` (a page or a file of a package). `flow` is the number of
        the connection, from 1. `about` has optional details. They are `address`, `tier`, `method`, `path` (recorded as
        16 hex digits of its SHA-256), `refs` (each change of a push, with its old and its new object), `package` with
        its version, `digest` (from its page), `malware` (the list), and `approval` (the pending one).
        """
        if "path" in about:
            about["path"] = hashlib.sha256(about["path"].encode()).hexdigest()[:16]
        detail = {name: value for name, value in about.items() if value is not None}
        detail |= {"instance_id": self.instance_id, "flow": flow, "host": target.host, "port": target.port}
        number = self.audit_log.verdict(
            f"egress.{kind}",
            allowed=verdict.allowed,
            rule=verdict.rule,
            reason=verdict.reason if verdict.allowed else self.secrets.redacted(verdict.reason),
            sandbox=self.sandbox,
            detail={**detail, "revision": verdict.revision},
        )
        owner = self.owners.pop(flow, None)
        if owner is not None:
            owner.add_done_callback(partial(self._record_owner, flow, number))
        return number

    def _record_owner(self, flow: int, number: int, owner: asyncio.Task[dict[str, Any]]) -> None:
        if not owner.cancelled():
            about = {"instance_id": self.instance_id, "flow": flow, "decision": number}
            record_event(self.audit_log, "egress.origin", self.sandbox, {**about, **owner.result()})

    def outcome(self, number: int, *, sent: int, received: int, error: str | None, **about: Any) -> None:
        """Record the outcome of decision `number`.

        Raises UnrecordedError.

        The bytes are the ones on the sandbox's side. `about` is the package cache's part: its action (`cache`), and
        `url` and `digest` of the sandbox's file.
        """
        error = None if error is None else self.secrets.redacted(error)
        detail: dict[str, object] = {"sent": sent, "received": received, **about}
        self.audit_log.outcome(number, "egress", ok=error is None, error=error, detail=detail)

    async def dial(self, flow: int, target: Target, *, literal: str | None, tls: bool, h2: bool = False) -> ProxyStream:
        """Connect to a server. Raise Refused."""

        def check(address: str) -> Verdict:
            verdict = self._address(target, address)
            self.decide("dial", flow, target, verdict, address=address)
            return verdict

        before = self.policy.revision
        upstream = await self.gateway.dialer.dial(
            target, literal=literal, tls=tls, check=check, lookups=self._lookups, h2=h2
        )
        if self.policy.revision != before and not self.may_connect(target, upstream.address):
            upstream.reset("revised")
            raise Refused("the policy has changed meanwhile", rule="address")
        return upstream

    def check_revision(self, verdict: Verdict, since: str = "meanwhile") -> None:
        """Raise Refused if the verdict is of another revision than the present one."""
        if self.policy.revision != verdict.revision:
            raise Refused(f"the policy has changed {since}", rule=verdict.rule, hint="try again")

    def may_connect(self, target: Target, address: str) -> bool:
        """Tell whether the policy allows this address, or a cached answer from it. It neither connects nor records."""
        return self._address(target, address).allowed

    def _address(self, target: Target, address: str) -> Verdict:
        return self.policy.address(target, address, own=is_own(far_end(address)))

    def hold(self, size: int) -> None:
        """Count so many more (or fewer) buffered bytes of requests. Raise Refused if there are too many."""
        if size > 0 and self._held + size > MOST_HELD_BYTES:
            raise Refused("too many requests wait to be looked at whole", status=503, rule="body", hint="try again")
        self._held += size

    # -- names ---------------------------------------------------------------------------------------------------------

    def lookup(self, name: str) -> str | Denied:
        """Return the answer for the resolver inside. It records the first query for a name under a revision."""
        try:
            host = canonical(name)
        except BadMessage:
            return Denied.NAME
        if is_address(host):
            return Denied.NAME
        verdict = self.policy.name(host)
        key = (verdict.revision, host)
        if key not in self._asked:
            if not self._new_names.take():
                return Denied.NOW
            try:
                self.decide("name", 0, Target(host, 53), verdict)
            except UnrecordedError:
                return Denied.NOW
            self._asked[key] = None
            if len(self._asked) > 4096:
                del self._asked[next(iter(self._asked))]
        if not verdict.allowed:
            return Denied.NAME
        return self.names.address(host) or Denied.NOW

    def _answer_names(self) -> None:
        for _ in range(_ACCEPT_AT_ONCE):
            try:
                query, client = self.dns_udp.recvfrom(MAX_QUERY_BYTES)
                reply = answer(query, self.lookup)
                if reply is not None:
                    self.dns_udp.sendto(reply, client)
            except BlockingIOError:
                return
            except OSError:
                continue  # of one client: it has gone

    async def _serve_names(self, connection: Connection, sock: socket.socket) -> None:
        client = connection.client
        connection.limit(self.limits.first_byte)
        try:
            await client.attach(sock)
            while await client.more():
                for query in take_queries(client.buffer):
                    reply = answer(query, self.lookup)
                    if reply is None:
                        return
                    client.write(frame(reply))
                await client.drain()
        except (ValueError, ConnectionLost):
            client.reset()
        finally:
            client.close()
            self.live.discard(connection)


def _reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


_TICK_SECONDS = 0.5
_SO_ORIGINAL_DST = 80  # linux/netfilter_ipv4.h; the same number for IPv6, at its own level

Destination = Callable[[socket.socket], tuple[str, int]]
"""Returns the original destination of an accepted connection. Raises OSError."""


def original_destination(sock: socket.socket) -> tuple[str, int]:
    """Return where an accepted connection wanted to go. OSError: it was not redirected."""
    if sock.family == socket.AF_INET:
        name = sock.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16)
        return socket.inet_ntop(socket.AF_INET, name[4:8]), int.from_bytes(name[2:4], "big")
    name = sock.getsockopt(socket.IPPROTO_IPV6, _SO_ORIGINAL_DST, 28)
    return socket.inet_ntop(socket.AF_INET6, name[8:24]), int.from_bytes(name[2:4], "big")


class Gateway:
    """Used within one event loop. `close_all` ends everything that it began."""

    def __init__(
        self,
        *,
        owners: ConnectionOwners,
        reader: Reader,
        malware: MalwareIndexes,
        packages: PackageStore | None,
        handlers: HandlerHost | None,
        outside: Outside,
        destination: Destination = original_destination,
        limits: Limits | None = None,
    ) -> None:
        """Begin a gateway. It has no cache of packages without `packages`, and runs no handlers without `handlers`."""
        self.loop = asyncio.get_running_loop()
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.dialer = Dialer(self.scratch, outside)
        self.destination, self.limits, self.owners = destination, limits or Limits(), owners
        self.reader, self.malware, self.packages, self.handlers = reader, malware, packages, handlers
        self.networks: dict[str, SandboxNetwork] = {}
        """The open networks, by sandbox."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticker: asyncio.TimerHandle | None = None

    async def open(self, network: SandboxNetwork) -> None:
        """Serve a network. Close an open one of the same sandbox first."""
        await self.close(network.sandbox)
        network.listen()
        self.networks[network.sandbox] = network
        if self._ticker is None:
            self._tick()

    async def close(self, sandbox: str) -> None:
        """Cut the connections of a network, and close its sockets. Idempotent."""
        network = self.networks.pop(sandbox, None)
        if network is not None:
            await network.close()

    async def close_all(self) -> None:
        for sandbox in list(self.networks):
            await self.close(sandbox)
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self.owners.close()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Serve a connection, a stream of one, or an order of the daemon."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # ours: a connection was ended all the same
            self.loop.call_exception_handler(
                {"message": "work of the gateway failed", "exception": error, "task": task}
            )

    def _tick(self) -> None:
        now = self.loop.time()
        for network in list(self.networks.values()):
            network.tick(now)
        self._ticker = self.loop.call_later(_TICK_SECONDS, self._tick)
