"""Capabilities of the calling thread (capabilities(7), capget(2), include/uapi/linux/capability.h)."""

from __future__ import annotations

import ctypes
import errno
import struct
from typing import NamedTuple

from paddock.linux.prctl import prctl
from paddock.linux.syscall import call

CHOWN = 0
DAC_OVERRIDE = 1
DAC_READ_SEARCH = 2
FOWNER = 3
FSETID = 4
KILL = 5
SETGID = 6
SETUID = 7
SYS_PTRACE = 19
SYS_ADMIN = 21
SETFCAP = 31

_CAPBSET_READ, _CAPBSET_DROP = 23, 24
_BITS = 64
_HEADER = ctypes.create_string_buffer(struct.pack("=II", 0x2008_0522, 0), 8)  # _LINUX_CAPABILITY_VERSION_3, self
_NONE = bytes(24)


class Capabilities(NamedTuple):
    """Sets as bit masks."""

    effective: int
    permitted: int
    inheritable: int


def get() -> Capabilities:
    """Return the sets of the caller."""
    data = ctypes.create_string_buffer(24)
    call("capget", _HEADER, data)
    words = struct.unpack("=6I", data.raw)
    return Capabilities(*(words[i] | words[i + 3] << 32 for i in range(3)))


def drop_all() -> None:
    """Empty effective, permitted and inheritable set, for good."""
    call("capset", _HEADER, _NONE, what="capset: drop all")


def keep_only(*capabilities: int) -> None:
    """Reduce the effective and the permitted set to these, which the caller must have, and clear the
    inheritable one.
    """
    mask = mask_of(*capabilities)
    low, high = mask & 0xFFFF_FFFF, mask >> 32
    call("capset", _HEADER, struct.pack("=6I", low, low, 0, high, high, 0), what=("capset: keep", hex(mask)))


def drop_bounding(*keep: int) -> None:
    """Take everything but `keep` out of the bounding set: no exec gains the rest again. Needs CAP_SETPCAP.

    Some 0.2 ms. Moot for a process without capabilities under no_new_privs, which no exec gives any.
    """
    for capability in range(_BITS):
        if capability in keep:
            continue
        try:
            prctl(_CAPBSET_DROP, capability, what="prctl drop from the bounding set")
        except OSError as error:
            if error.errno == errno.EINVAL:  # the kernel knows none of this number and above
                return
            raise


def is_bounded(capability: int) -> bool:
    """Tell whether no exec can give the caller this capability, not even one of a set-user-id program."""
    return not prctl(_CAPBSET_READ, capability, what="prctl read the bounding set")


def mask_of(*capabilities: int) -> int:
    """Return the bit mask with these capabilities, as /proc/<pid>/status shows sets."""
    return sum(1 << capability for capability in {*capabilities})
