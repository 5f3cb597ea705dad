"""The secrets of one sandbox, as the gateway has them: in memory, changed while it runs."""

from __future__ import annotations

import re
import secrets
import string
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from paddock.errors import InvalidArgumentError
from paddock.gateway.protocols.refusal import Refused
from paddock.gateway.protocols.replacer import Needles
from paddock.model import Binding, SecretValue, Target
from paddock.model.egress import host_matches

from .redaction import Redaction

DEFAULT_SHAPE = "pdk_" + "*" * 40
LEAST_RANDOM = 24
_ALPHABET = string.ascii_letters + string.digits
# Characters that no encoding of a URL, of JSON or of a form changes.
_SHAPE = re.compile(r"[A-Za-z0-9._~*-]{24,256}")


def mint(shape: str | None = None) -> str:
    """Make a placeholder, which is worth nothing outside the sandbox: each `*` of the shape is a random letter or
    digit."""
    shape = DEFAULT_SHAPE if shape is None else shape
    check_shape(shape)
    return "".join(secrets.choice(_ALPHABET) if character == "*" else character for character in shape)


def check_shape(shape: str) -> None:
    if not _SHAPE.fullmatch(shape) or shape.count("*") < LEAST_RANDOM:
        raise InvalidArgumentError(
            f"{shape[:256]!r} is not the shape of a placeholder. Write letters, digits, `-`, `.`, `_`, `~`, and at"
            f" least {LEAST_RANDOM} `*` for random characters",
            hint=f"ghp_{'*' * 36}",
            field="shape",
        )


_MOST_PAST = 16


class Unavailable(Refused):
    """A secret has no value, or the value has no valid form at its placeholder's position."""

    def __init__(self, reason: str, *, hint: str = "") -> None:
        super().__init__(reason, status=424, rule="secret", hint=hint)


class BoundSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret of a sandbox: its placeholder, its bindings and its present value.

    `value` is None after its revocation. `expires_at` is in CLOCK_BOOTTIME seconds.
    """

    name: str
    placeholder: str
    bindings: tuple[Binding, ...]
    value: SecretValue | None = None
    expires_at: float | None = None


def to_bytes(secrets: Sequence[BoundSecret] | BoundSecret) -> bytes:
    """Encode secrets for the gateway's socket, the only way that they take."""
    return msgspec.msgpack.encode(secrets)


def from_bytes(data: bytes) -> tuple[BoundSecret, ...]:
    return msgspec.msgpack.decode(data, type=tuple[BoundSecret, ...]) if data else ()


class SecretBook:
    """The `secrets` of a `SandboxNetwork`."""

    def __init__(
        self,
        secrets: Iterable[BoundSecret] = (),
        *,
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._clock = clock
        self._bound = {secret.name: secret for secret in secrets}
        self._names = {one.placeholder.encode(): one.name for one in self._bound.values()}
        self.needles = Needles(tuple(self._names))
        self._past: list[tuple[bytes, bytes]] = []
        self._redaction: Redaction | None = None

    def __bool__(self) -> bool:
        return bool(self._bound)

    def name(self, placeholder: bytes) -> str:
        return self._names[placeholder]

    def placeholders(self) -> tuple[tuple[bytes, str], ...]:
        """Return each placeholder with the name of its secret."""
        return tuple(self._names.items())

    def find(self, data: bytes) -> tuple[str, ...]:
        """Return the names of those whose placeholder is in there."""
        return tuple(self._names[needle] for needle in self.needles.found(data))

    def value(self, name: str) -> bytes:
        """Return the value of a secret. Raises Unavailable after its revocation or expiry, and for an unknown name."""
        bound = self._bound.get(name)
        if bound is None or bound.value is None:
            raise Unavailable(f"secret {name} was revoked", hint=f"paddock secret set {name}")
        if bound.expires_at is not None and bound.expires_at <= self._clock():
            raise Unavailable(f"the time of secret {name} is over, and it was not renewed")
        return bound.value.data

    def bindings(self, name: str, target: Target, method: str) -> tuple[Binding, ...]:
        """Return the bindings that fit such a request. The policy has authorized its path."""
        bound = self._bound.get(name)
        return tuple(
            one
            for one in (() if bound is None else bound.bindings)
            if one.port == target.port
            and host_matches(one.host, target.host)
            and (one.methods is None or method in one.methods)
        )

    def is_bound_to(self, target: Target) -> bool:
        """Tell whether some request to that target could have got a value, which later answers may repeat."""
        bindings = (binding for bound in self._bound.values() for binding in bound.bindings)
        return any(one.port == target.port and host_matches(one.host, target.host) for one in bindings)

    def put(self, bound: BoundSecret) -> None:
        """Add a secret, or change the value or the bindings of one from the next request on.

        Redaction still covers the old value.
        """
        before = self._bound.get(bound.name)
        if before is None:
            self._names[bound.placeholder.encode()] = bound.name
            self.needles = Needles(tuple(self._names))
        else:
            bound = msgspec.structs.replace(bound, placeholder=before.placeholder)
            if before.value is not None and before.value != bound.value:
                self._past = [*self._past[1 - _MOST_PAST :], (before.value.data, before.placeholder.encode())]
        self._bound[bound.name] = bound
        self._redaction = None

    def redacted(self, reason: str) -> str:
        """Redact an error, which may quote an answer."""
        return self.redaction().whole(reason.encode(errors="replace")).decode(errors="replace") if self else reason

    def redaction(self) -> Redaction:
        """Return the redaction of all present and recent values. It keeps lengths."""
        if self._redaction is None:
            now = {b.value.data: b.placeholder.encode() for b in self._bound.values() if b.value is not None}
            self._redaction = Redaction({**dict(self._past), **now}, keep_length=True)
        return self._redaction
