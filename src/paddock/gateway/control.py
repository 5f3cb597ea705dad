"""What the daemon and the gateway say to each other: JSON in the frames of `paddock.wire`.

The daemon opens with `Hello`, and is answered `Welcome`. Each `Order` is answered when it is done; what was recorded,
as MessagePack, after a `Record` that ends it. The gateway asks with an `ApprovalRequest`, and is answered an
`ApprovalAnswer`. Both are checked: each must outlive the other's faults.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

VERSION = 3


class _Said(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag=str.lower, forbid_unknown_fields=True): ...


class Hello(_Said, frozen=True, kw_only=True):
    version: int


class Welcome(_Said, frozen=True, kw_only=True):
    pid: int


class Open(_Said, frozen=True, kw_only=True):
    """The network of a sandbox, whose pid 1 is `first`: pid and start time. With it come the descriptors of `Exits`, in
    their order. `secrets` are those of a `SecretBook`."""

    sandbox: str
    incarnation: int
    first: tuple[int, int]
    snapshot: bytes
    certificate: bytes
    key: bytes
    secrets: bytes = b""


class Revise(_Said, frozen=True, kw_only=True):
    sandbox: str
    incarnation: int
    snapshot: bytes


class Secret(_Said, frozen=True, kw_only=True):
    """Another value of one, or that it is revoked: a `Bound`."""

    sandbox: str
    name: str
    secret: bytes


class Record(_Said, frozen=True, kw_only=True):
    """Begins to record what requests are answered, or ends it: then the answer has it."""

    sandbox: str
    incarnation: int
    on: bool


class Close(_Said, frozen=True, kw_only=True):
    sandbox: str
    incarnation: int


Order: TypeAlias = Open | Revise | Secret | Record | Close
