"""Orders to pid 1 of a sandbox, as requests on a connection of the native guest's (`native/init.c`)."""

from __future__ import annotations

import errno
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from paddock.errors import PaddockError, SandboxError
from paddock.model import User
from paddock.wire import guest as wire
from paddock.wire.guest import IdentityFlags, Op
from paddock.wire.message import Message

from ._place import encode
from ._requests import Request, ask, flags, of_guest

if TYPE_CHECKING:
    from .connection import GuestConnection

_LARGEST = (1 << 64) - 1
_NANOSECONDS = 1_000_000_000


def identity(
    name: str, user: User, *, eager: bool = False, attending: bool = False, tells: bool = False, filter: bytes
) -> Request:
    wanted = flags({IdentityFlags.EAGER: eager, IdentityFlags.ATTENDING: attending, IdentityFlags.TELLS: tells})
    return _ask(Op.IDENTITY, wire.Identity(name=encode(name), uid=user.uid, gid=user.gid, flags=wanted, filter=filter))


def begin(*, deadline: float, idle: float, retention: float, limits: Mapping[int, int]) -> Request:
    rlimits = tuple(number for resource, value in limits.items() for number in (resource, value))
    return _ask(Op.BEGIN, wire.Begin(deadline=ns(deadline), idle=ns(idle), retention=ns(retention), rlimits=rlimits))


def deadline(boottime: float) -> Request:
    return _ask(Op.DEADLINE, wire.Deadline(deadline=ns(boottime)))


def hold(seconds: int) -> Request:
    return _ask(Op.HOLD, wire.Hold(seconds=seconds))


def pause_clock(paused: bool) -> Request:
    return _ask(Op.PAUSE_CLOCK, wire.PauseClock(paused=int(paused)))


def renew(message: wire.Renew) -> Request:
    return _ask(Op.RENEW, message)


def trust(place: str, systems: Sequence[str], data: bytes) -> Request:
    return _ask(Op.TRUST, wire.Trust(place=encode(place), systems=tuple(map(encode, systems)), data=data))


def share(number: int, target: str, *, writable: bool) -> Request:
    """Have a directory of the host's appear at `target`, in a machine."""
    return _ask(
        Op.SHARE, wire.Share(number=number, flags=wire.ShareFlags.WRITABLE if writable else 0, target=encode(target))
    )


async def serves(control: GuestConnection, identity: str) -> bool:
    answer = await control.open(_ask(Op.AGENT, wire.Agent(name=encode(identity)))).call(wire.AgentReply)
    return answer.pid != 0


async def verdict(control: GuestConnection, identity: str, pid: int | None) -> tuple[bool, int | None]:
    answer = await control.open(_ask(Op.LOST, wire.Lost(name=encode(identity), pid=pid or 0))).call(wire.LostReply)
    return answer.alive != 0, answer.signal or None


def seconds(nanoseconds: int) -> float | None:
    """None: the largest number, which stands for none."""
    return None if nanoseconds == _LARGEST else nanoseconds / _NANOSECONDS


def ns(seconds: float) -> int:
    return min(max(0, int(seconds * _NANOSECONDS)), _LARGEST - 1) if math.isfinite(seconds) else _LARGEST - 1


def _ask(op: Op, message: Message) -> Request:
    return ask(op, message, _of_pid1)


def _of_pid1(number: int, step: str) -> PaddockError:
    if step in ("stop", "hold") and number == errno.ETIMEDOUT:
        return SandboxError("not all of the sandbox stopped in time", hint="try again")
    return of_guest(number, step)


PAUSE, RESUME, TIMES, AWAKE = (Request(op, b"", _of_pid1) for op in (Op.PAUSE, Op.RESUME, Op.TIMES, Op.AWAKE))
