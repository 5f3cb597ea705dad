"""Identifiers: a prefix for each kind, then 16 characters that sort by time and that an attacker can't guess.

They don't contain `-`, so that a double click selects the whole, and option parsers accept them.
"""

from __future__ import annotations

import os
import re
import time
from enum import StrEnum

from paddock.errors import InvalidArgumentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NewType
else:

    def NewType(name, of):
        return of


SandboxId = NewType("SandboxId", str)
ExecId = NewType("ExecId", str)
SnapshotId = NewType("SnapshotId", str)
WorkspaceId = NewType("WorkspaceId", str)
RepositoryId = NewType("RepositoryId", str)
BaseId = NewType("BaseId", str)
ApprovalId = NewType("ApprovalId", str)

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u


class IdPrefix(StrEnum):
    SANDBOX = "sb_"
    WORKSPACE = "ws_"
    SNAPSHOT = "sn_"
    TEMPLATE = "tp_"
    EXEC = "ex_"
    REPOSITORY = "rp_"
    BASE = "bs_"
    WORKSHOP = "wk_"
    APPROVAL = "ap_"


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_ID = re.compile(f"(?:{'|'.join(IdPrefix)})[{_ALPHABET}]{{16}}")


def mint(noun: IdPrefix) -> str:
    """Return a new id: 30 bits of seconds since 2026, then 50 random bits."""
    seconds = (int(time.time()) - 1_767_225_600) & 0x3FFF_FFFF
    number = seconds << 50 | int.from_bytes(os.urandom(7), "big") & (1 << 50) - 1
    digits = [_ALPHABET[number >> shift & 31] for shift in range(75, -1, -5)]
    return noun + "".join(digits)


def is_id(text: str) -> bool:
    """Tell whether it is a whole id of any noun, as `mint` makes them."""
    return _ID.fullmatch(text) is not None


def check_name(name: str | None, noun: IdPrefix) -> None:
    """Check the name that a caller gives to something of a kind. It has no prefix of an id. InvalidArgumentError."""
    if name is None or (_NAME.fullmatch(name) and not name.startswith(noun)):
        return
    what = "at most 63 letters, digits, `_`, `.` or `-`, the first a letter or digit"
    if _NAME.fullmatch(name):
        what = f"ids begin with `{noun.value}`, so no name does"
    raise InvalidArgumentError(f"name {name[:200]!r} is not allowed: {what}", field="name")
