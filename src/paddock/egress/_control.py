"""What services and the gateway say to each other: MessagePack behind a 32-bit length, descriptors beside it.

Both ends are ours and of one uid. Bounded and checked all the same: each must outlive the other's faults.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

import msgspec

VERSION = 1
MOST_BYTES = 32 << 20
"""Ten thousand rules are two."""
MOST_DESCRIPTORS = 8
_LENGTH = struct.Struct("!I")


class ControlError(Exception):
    """The other side does not speak this protocol."""


class _Said(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag=str.lower, forbid_unknown_fields=True):
    """`n` is the asker's number for it."""

    n: int


class Hello(_Said, frozen=True, kw_only=True):
    version: int


class Open(_Said, frozen=True, kw_only=True):
    """The door of a sandbox. `sockets` come with it, in the order of `Exits`: as many for connections as there are
    more than three. None: those that the gateway has are meant. `secrets` are the plane's to read."""

    sandbox: str
    incarnation: int
    snapshot: bytes
    certificate: bytes
    key: bytes
    sockets: int
    secrets: bytes = b""


class Revise(_Said, frozen=True, kw_only=True):
    sandbox: str
    incarnation: int
    snapshot: bytes


class Secret(_Said, frozen=True, kw_only=True):
    """Another value of one, or that it is revoked, as the plane reads it."""

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


class Claim(_Said, frozen=True, kw_only=True):
    """Asked by the gateway: may this be done, once? `digest`: SHA-256 of the exact arguments."""

    sandbox: str
    incarnation: int
    revision: str
    kind: str
    digest: str
    summary: str


class Claimed(_Said, frozen=True, kw_only=True):
    """A service's answer to the gateway's `n`: the `ApprovalState`, `used` being a yes; or `unknown`."""

    state: str
    approval: str | None = None
    reason: str = ""


class Answer(_Said, frozen=True, kw_only=True):
    """The gateway's to the service's `n`. `doors`: those that are open, after `hello`; `recording`: what was
    recorded, after `record`; `certificate`: that of the authority which signs there, after `open`."""

    error: str | None = None
    kind: str | None = None
    version: int = VERSION
    pid: int = 0
    doors: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    recording: bytes = b""
    certificate: bytes = b""


Message: TypeAlias = Hello | Open | Revise | Secret | Record | Close | Claim | Claimed | Answer
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


def encode(message: Message) -> bytes:
    body = _encode(message)
    if len(body) > MOST_BYTES:
        raise ControlError(f"a message of {len(body)} bytes is over the limit of {MOST_BYTES}")
    return _LENGTH.pack(len(body)) + body


class Inbox:
    """Collects bytes, gives whole messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Those that are whole now. ControlError: then nothing more can be read."""
        self._buffer += data
        found: list[Message] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MOST_BYTES:
                raise ControlError(f"a message of {length} bytes is announced, over the limit of {MOST_BYTES}")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            try:
                found.append(_decode(memoryview(self._buffer)[_LENGTH.size : end]))
            except (msgspec.DecodeError, RecursionError) as error:
                raise ControlError(f"a message can't be read: {error}") from None
            del self._buffer[:end]
        return found
