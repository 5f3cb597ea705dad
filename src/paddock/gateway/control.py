"""The messages between the daemon and the gateway: JSON in the frames of `paddock.wire`.

The daemon opens with `Hello`, and the gateway answers `Welcome`. It answers each `Order` after completion. The answer
to a `Record` that ends a recording is the recording, as MessagePack. The gateway sends an `ApprovalRequest`, and the
daemon answers with an `ApprovalAnswer`. Each side checks the other's messages, so that it survives the other's faults.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

VERSION = 3


class _Said(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag=str.lower, forbid_unknown_fields=True): ...


class _OfInstance(_Said, frozen=True, kw_only=True):
    """About the network of one instance of a sandbox."""

    sandbox: str
    instance_id: int


class Hello(_Said, frozen=True, kw_only=True):
    version: int


class Welcome(_Said, frozen=True, kw_only=True):
    pid: int


class Open(_OfInstance, frozen=True, kw_only=True):
    """The network of a sandbox, whose pid 1 is `first`: pid and start time. With it come the descriptors of `Exits`, in
    their order. `secrets` are those of a `SecretBook`."""

    first: tuple[int, int]
    snapshot: bytes
    certificate: bytes
    key: bytes
    secrets: bytes = b""


class Revise(_OfInstance, frozen=True, kw_only=True):
    snapshot: bytes


class Secret(_Said, frozen=True, kw_only=True):
    """A new value of a secret, or its revocation: a `BoundSecret`."""

    sandbox: str
    name: str
    secret: bytes


class Record(_OfInstance, frozen=True, kw_only=True):
    """Starts to record the answers to requests, or ends it. At the end the answer has the recording."""

    on: bool


Order: TypeAlias = Open | Revise | Secret | Record
