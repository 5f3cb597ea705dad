"""What leaves a sandbox: where it wants to go, and the verdicts on it. See docs/design/egress.md."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from .policy import Allow, Mock


class Tier(StrEnum):
    """What the gateway does with an allowed connection.

    `splice` checks the name of a TLS hello and passes bytes; `inspect` ends TLS and judges each request; `mock`
    answers in the place of the host.
    """

    SPLICE = "splice"
    INSPECT = "inspect"
    MOCK = "mock"


class Target(msgspec.Struct, frozen=True):
    """Where a connection wants to go.

    `host` is canonical: a name in lower case, as A-labels, without a final dot; or an address as `ipaddress` writes it.
    """

    host: str
    port: int


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`rule` names what decided; `revision` is the digest of the policy that it belongs to."""

    allowed: bool
    rule: str
    reason: str
    revision: str


class ConnectVerdict(Verdict, frozen=True, kw_only=True):
    """On a connection. `tier` is None where it is refused."""

    tier: Tier | None = None


class RequestVerdict(Verdict, frozen=True, kw_only=True):
    """On one request of an inspected connection.

    `secrets` are the names of those whose placeholder may be swapped in it. `approve` is what a person has to say yes
    to before it may go on (`host`, `git.push`, `publish`). `registry`, `git` and `mock` name the protocol that judges
    further, with the rule's index in the document as `item`. `filtered`: what the registry answers has to be looked
    through before it may be seen.
    """

    secrets: tuple[str, ...] = ()
    approve: str | None = None
    registry: str | None = None
    filtered: bool = False
    git: str | None = None
    mock: str | None = None
    item: int | None = None


class EgressPolicy(Protocol):
    """A compiled policy. Pure, total, closed by default; every method takes about a microsecond and never raises."""

    @property
    def revision(self) -> str:
        """The digest of what it was compiled from."""
        ...

    def name(self, name: str) -> Verdict:
        """Whether a canonical name may be resolved: whether any connection to it could be allowed."""
        ...

    def connect(self, target: Target) -> ConnectVerdict: ...

    def address(self, target: Target, address: str, *, own: Collection[str] = ()) -> Verdict:
        """Whether `target`, which may be connected to, may be at this address: loopback, link-local, private,
        metadata and translated addresses are refused but where a rule names them by CIDR; so are the host's `own`."""
        ...

    def request(self, target: Target, scheme: str, method: str, path: str, push: bool | None = None) -> RequestVerdict:
        """`path` is in its normal form, with its query. `push`: whether the body of a git LFS batch asks for more than
        downloads; None: it is not read yet."""
        ...

    def mock(self, item: int) -> Mock:
        """What is answered, by the `item` of a verdict with `mock`."""
        ...

    def push(self, item: int, ref: str) -> bool:
        """Whether a ref, by its full name, may be pushed to; by the `item` of a verdict with `git`."""
        ...

    def registry(self, item: int) -> Allow:
        """The rule of a verdict with `registry`, by its `item`; its `hosts` are said."""
        ...
