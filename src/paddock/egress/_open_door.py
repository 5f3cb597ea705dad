"""A door while it is open: its names, its connections, and the records of both."""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from paddock.errors import Unrecorded
from paddock.linux.routes import is_own
from paddock.model import Recording
from paddock.model.egress import Target, Verdict
from paddock.policy.egress import Snapshot

from ._authority import Authority
from ._dns import Denied, Synthetic
from ._handler import HandlerHost
from ._journal import AuditJournal
from ._judged import Approvals
from ._malware import Lists
from ._mocks import Mocks
from ._names import BadHost, canonical, is_address
from ._package_cache import PackageStore
from ._pool import Pool
from ._recorder import Recorder
from ._refusal import Refused
from ._registry import Shelf
from ._registry_reader import Reader
from ._secret_book import SecretBook
from ._upstream import Check, Dialer, Upstream
from ._witness import First


class Door(msgspec.Struct, kw_only=True, eq=False):
    """The exits of one sandbox in one incarnation. The sockets listen in its network namespace; the gateway owns
    them from `Gateway.open` on. `policy` is what holds now; without `diag` nobody is told who makes connections.
    `first` is its pid 1: pid and start time."""

    sandbox: str
    incarnation: int
    tcp: Sequence[socket.socket]
    dns_udp: socket.socket
    dns_tcp: socket.socket
    policy: Snapshot
    authority: Authority
    secrets: SecretBook
    approvals: Approvals
    journal: AuditJournal
    diag: socket.socket | None = None
    first: First = (0, 0)


if TYPE_CHECKING:
    from ._connection import Connection

MOST_HELD_BYTES = 32 << 20
_TELL_SECONDS = 10.0


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one door, in seconds but for `connections`, `streams` (of HTTP/2) and `names_per_second` (new ones, of its
    resolver)."""

    connections: int = 512
    streams: int = 1024
    first_byte: float = 10.0
    head: float = 30.0
    keep_alive: float = 120.0
    response: float = 600.0
    idle: float = 900.0
    handler: float = 10.0
    names_per_second: float = 100.0


class Pages(msgspec.Struct, frozen=True, kw_only=True):
    """Who reads those of registries, what is known of packages, and their files: one for a gateway."""

    reader: Reader | None = None
    known: Lists | None = None
    packages: PackageStore | None = None


class OpenDoor:
    """`refused` counts the connections that were over the limit; they are recorded together, every now and then."""

    def __init__(
        self,
        door: Door,
        dialer: Dialer,
        limits: Limits,
        loop: asyncio.AbstractEventLoop,
        handlers: HandlerHost | None,
        pages: Pages | None = None,
    ) -> None:
        self.door, self.dialer, self.limits, self.loop = door, dialer, limits, loop
        self.names, self.pool, self.streams = Synthetic(), Pool(loop), 0
        self.pages = pages or Pages()
        self.shelf = Shelf(self.pages.known)
        self.mocks = Mocks(handlers, lambda: self.door.secrets)
        self.recorder: Recorder | None = None
        self.watched = False
        self.live: set[Connection] = set()
        self.origins: dict[int, asyncio.Task[dict[str, Any]]] = {}
        """By flow, the question who made it, of those that nothing was decided on yet."""
        self.refused = self._told = 0
        self._tell_at = loop.time()
        self._flows = self._held = 0
        self._asked: OrderedDict[tuple[str, str], bool] = OrderedDict()
        self._credit, self._credited = limits.names_per_second, loop.time()

    def next_flow(self) -> int:
        self._flows += 1
        return self._flows

    def decide(self, kind: str, flow: int, target: Target, verdict: Verdict, **about: Any) -> int:
        """Records it; `about` as in `AuditJournal.decision`. Unrecorded."""
        door = self.door
        about |= {"incarnation": door.incarnation, "flow": flow, "host": target.host, "port": target.port}
        number = door.journal.decision(kind, verdict, sandbox=door.sandbox, **about)
        asked = self.origins.pop(flow, None)
        if asked is not None and asked.done():
            self._record_origin(flow, number, asked)
        elif asked is not None:
            asked.add_done_callback(partial(self._record_late_origin, flow, number))
        return number

    def _record_origin(self, flow: int, number: int, asked: asyncio.Task[dict[str, Any]]) -> None:
        door = self.door
        door.journal.origin(door.sandbox, door.incarnation, flow, number, asked.result())

    def _record_late_origin(self, flow: int, number: int, asked: asyncio.Task[dict[str, Any]]) -> None:
        if not asked.cancelled():
            with suppress(Unrecorded):
                self._record_origin(flow, number, asked)

    async def dial(self, flow: int, target: Target, *, literal: str | None, tls: bool, h2: bool = False) -> Upstream:
        """Refused."""
        before = self.door.policy.revision
        upstream = await self.dialer.dial(target, literal=literal, tls=tls, check=self._check(flow, target), h2=h2)
        policy = self.door.policy
        if policy.revision != before and not policy.address(target, upstream.address).allowed:
            upstream.wire.reset("revised")
            raise Refused("the policy has changed meanwhile", rule="address")
        return upstream

    def may_dial(self, target: Target, address: str) -> bool:
        """Whether an answer may be one that this address has given; nothing is dialled, and nothing recorded."""
        return self.door.policy.address(target, address, own=(address,) if is_own(address) else ()).allowed

    def hold(self, size: int) -> None:
        """So many bytes more (or less) are kept of requests that are looked at whole. Refused: too many."""
        if size > 0 and self._held + size > MOST_HELD_BYTES:
            raise Refused("too many requests wait to be looked at whole", status=503, rule="body", hint="try again")
        self._held += size

    def _check(self, flow: int, target: Target) -> Check:
        def check(address: str) -> Verdict:
            verdict = self.door.policy.address(target, address, own=(address,) if is_own(address) else ())
            self.decide("dial", flow, target, verdict, address=address)
            return verdict

        return check

    def lookup(self, name: str) -> str | Denied:
        """What the resolver inside is told. A name is recorded when it is first asked for under a revision."""
        try:
            host = canonical(name)
        except BadHost:
            return Denied.NAME
        if is_address(host):
            return Denied.NAME
        verdict = self.door.policy.name(host)
        key = (verdict.revision, host)
        if key not in self._asked:
            if not self._has_credit():
                return Denied.NOW
            try:
                self.decide("name", 0, Target(host, 53), verdict)
            except Unrecorded:
                return Denied.NOW
            self._asked[key] = True
            if len(self._asked) > 4096:
                self._asked.popitem(last=False)
        if not verdict.allowed:
            return Denied.NAME
        return self.names.address(host) or Denied.NOW

    def _has_credit(self) -> bool:
        """Names that nobody asked for before are a way to fill the log: so many a second, and a burst of ten times
        that."""
        now, rate = self.loop.time(), self.limits.names_per_second
        self._credit = min(10 * rate, self._credit + (now - self._credited) * rate)
        self._credited = now
        if self._credit < 1:
            return False
        self._credit -= 1
        return True

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
        with suppress(Unrecorded):  # nothing passes then; they are told of when it can be written again
            self.door.journal.crowded(self.door.sandbox, self.door.incarnation, untold)
            self._told, self._tell_at = self.refused, self.loop.time() + _TELL_SECONDS

    def record(self, on: bool) -> Recording | None:
        """Begins anew, or takes what was recorded; None: nothing was."""
        before, self.recorder = self.recorder, Recorder(lambda: self.door.secrets) if on else None
        return None if before is None else before.take()

    def revise(self, policy: Snapshot) -> None:
        if policy.revision != self.door.policy.revision:
            self.mocks.end()
        self.door.policy = policy
        self.pool.sweep(everything=True)
        for connection in list(self.live):
            connection.recheck(policy)

    def shut(self, why: str) -> None:
        self._tell_refused()
        self.mocks.end()
        for connection in list(self.live):
            connection.cut(why)
        self.pool.cut(why)
