"""What the pilot is asked and answers (`control`): objects in JSON, in the frames of the guest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Self

import msgspec

from paddock.backends._guest_frames import ProtocolError
from paddock.backends.guest import Request
from paddock.errors import BY_CODE, PaddockError, SandboxError
from paddock.wire import WireError
from paddock.wire.guest import Limit, Stream

if TYPE_CHECKING:
    from paddock.backends._guest_connection import GuestConnection

_OP = 0
"""None of the guest's."""
# The pilot says what went wrong there. It can't make us say that the machine, the policy or the keeper failed.
_CODES = frozenset({"sandbox", "file", "invalid_argument", "invalid_state", "unsupported"})
_MAX_MESSAGE = 2000
_MOST = Limit.WINDOW


class Said(msgspec.Struct, frozen=True):
    """An answer. As it is, one of which nothing is wanted."""

    @classmethod
    def unpack(cls, body: bytes) -> Self:
        try:
            # Not msgspec's own decoder: it refuses the escapes that stand for bytes that are not UTF-8.
            return msgspec.convert(json.loads(body), cls)
        except (ValueError, RecursionError, msgspec.ValidationError) as error:
            raise WireError(str(error)[:200]) from None


class _Error(Said, frozen=True):
    code: str
    message: str
    errno: str | None = None


class _Request(Request):
    def error(self, body: bytes) -> PaddockError:
        try:
            told = _Error.unpack(body)
        except WireError as error:
            raise ProtocolError(f"an error with {error}") from None
        if told.code not in _CODES:
            raise ProtocolError("an error of a kind that no pilot may report")
        error = BY_CODE[told.code](told.message[:_MAX_MESSAGE])
        if told.errno is not None:
            error.details["errno"] = told.errno[:32]
        return error


class Environment(Said, frozen=True):
    env: dict[str, str]


def ask(op: str, **fields: object) -> Request:
    return _Request(_OP, json.dumps({"op": op, **fields}).encode(), _refused)


async def environment(control: GuestConnection) -> dict[str, str]:
    """What comes with each command. More than an answer holds comes as a stream."""
    channel = control.open(ask("environment"), receives=(Stream.OUT,))
    with channel.attended():
        await channel.reply(Said)
        told = bytearray()
        while part := await channel.read(Stream.OUT, Limit.BODY):
            told += part
            if len(told) > _MOST:
                raise channel.breach("an environment of more than it may say")
        await channel.finished()
    try:
        return Environment.unpack(bytes(told)).env
    except WireError as error:
        raise channel.breach(f"an environment with {error}") from None


def _refused(number: int, step: str) -> PaddockError:
    return SandboxError(f"the pilot refused it at {step!r}")
