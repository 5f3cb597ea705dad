"""What the gateway is given for one sandbox, and what it needs of others for it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from paddock.model.egress import EgressPolicy, Verdict

from ._approvals import Approvals
from ._authority import Authority
from ._secret_book import SecretBook
from ._witness import First


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """What one decision of the gateway was about.

    `kind`: `name` (a query to the resolver), `connect`, `dial` (an address of the target), `request`, `push` (of git),
    `secret` (a placeholder astray), `registry` (a page or a file of a package). `number` is the connection's, counted
    from 1 in each door; `path` the first 16 hex digits of the SHA-256 of path and query; `refs` all that a push would
    change, each with its old and its new object; `package` with its version, `digest` what the page said of the file,
    `malware` the list that it was looked up in.
    """

    kind: str
    sandbox: str
    incarnation: int
    number: int
    host: str
    port: int
    address: str | None = None
    tier: str | None = None
    method: str | None = None
    path: str | None = None
    refs: tuple[str, ...] | None = None
    package: str | None = None
    digest: str | None = None
    malware: str | None = None


class Journal(Protocol):
    def decision(self, flow: Flow, verdict: Verdict) -> int:
        """Its number. Unrecorded: then nothing may happen."""
        ...

    def outcome(
        self,
        number: int,
        *,
        sent: int,
        received: int,
        error: str | None,
        cache: str | None = None,
        file: tuple[str, str] | None = None,
    ) -> None:
        """What came of it; bytes as the sandbox saw them; what the package cache did. Unrecorded."""
        ...

    def origin(self, sandbox: str, incarnation: int, flow: int, decision: int, origin: dict[str, Any]) -> None:
        """Who made the connection that the decision was about, as the witness says. Unrecorded."""
        ...

    def crowded(self, sandbox: str, incarnation: int, refused: int) -> None:
        """So many connections more were over the limit. Unrecorded."""
        ...


class Door:
    """The exits of one sandbox in one incarnation. The sockets listen in its network namespace; the gateway owns
    them from `Gateway.open` on. `policy` is what holds now; without `diag` nobody is told who makes connections.
    `first` is its pid 1: pid and start time."""

    def __init__(
        self,
        *,
        sandbox: str,
        incarnation: int,
        tcp: Sequence[socket.socket],
        dns_udp: socket.socket,
        dns_tcp: socket.socket,
        policy: EgressPolicy,
        authority: Authority,
        secrets: SecretBook,
        approvals: Approvals,
        journal: Journal,
        diag: socket.socket | None = None,
        first: First = (0, 0),
    ) -> None:
        self.sandbox, self.incarnation, self.first = sandbox, incarnation, first
        self.tcp, self.dns_udp, self.dns_tcp, self.diag = tcp, dns_udp, dns_tcp, diag
        self.policy, self.authority = policy, authority
        self.secrets, self.approvals, self.journal = secrets, approvals, journal
