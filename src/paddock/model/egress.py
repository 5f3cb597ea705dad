"""Traffic from a sandbox: targets, and the verdicts on them. See docs/design/egress.md."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Tier(StrEnum):
    """The gateway's treatment of an allowed connection.

    `splice` checks the name in the TLS hello and passes bytes. `inspect` ends TLS and judges each request. `mock`
    answers in place of the host.
    """

    SPLICE = "splice"
    INSPECT = "inspect"
    MOCK = "mock"


class Target(msgspec.Struct, frozen=True):
    """The target of a connection.

    `host` is canonical: a name in lower case, as A-labels, without a final dot, or an address as `ipaddress` writes it.
    """

    host: str
    port: int


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict of the gateway. `rule` names the rule that decided, and `revision` is the digest of its policy."""

    allowed: bool
    rule: str
    reason: str
    revision: str


class ConnectVerdict(Verdict, frozen=True, kw_only=True):
    """A verdict on a connection. `tier` is None if the gateway refuses it."""

    tier: Tier | None = None


class RequestVerdict(Verdict, frozen=True, kw_only=True):
    """A verdict on one request of an inspected connection.

    `secrets` are the names of secrets whose placeholders the gateway may replace. `approve` is the kind of approval
    that the request needs (`host`, `git.push`, `publish`). `registry`, `git` and `mock` name the protocol that judges
    next, with the rule's index in the document as `item`. `filtered`: the gateway must filter the registry's answer.
    """

    secrets: tuple[str, ...] = ()
    approve: str | None = None
    registry: str | None = None
    filtered: bool = False
    git: str | None = None
    mock: str | None = None
    item: int | None = None


def host_matches(pattern: str, name: str) -> bool:
    """Tell whether a canonical name is that of a rule, or below its `*.suffix`."""
    return name.endswith(pattern[1:]) if pattern.startswith("*.") else name == pattern
