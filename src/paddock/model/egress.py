"""What leaves a sandbox: where it wants to go, and the verdicts on it. See docs/design/egress.md."""

from __future__ import annotations

from enum import StrEnum

import msgspec


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
