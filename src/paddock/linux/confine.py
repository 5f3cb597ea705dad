"""The rights that a process gives up for good before it reads hostile input."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterable

from paddock.linux import caps, landlock, prctl, seccomp
from paddock.linux.syscall import failure


def confine(
    *,
    readable: Iterable[str],
    writable: Iterable[str | int],
    calls: seccomp.Filter,
    capabilities: Iterable[int] = (),
    moves: bool = False,
) -> bool:
    """Give up powers, other files (paths, or descriptors of directories) and other system calls.

    `moves`: renames between directories have to work, which version 1 of Landlock refuses. False: this kernel has no
    Landlock that fits, so all files stay open to the caller's uid.
    """
    give_up_powers(*capabilities)
    abi = landlock.kernel_abi()
    fenced = landlock.restrict_files(0 if moves and abi < 2 else abi, readable=readable, writable=writable)
    calls.install()
    return fenced


def give_up_powers(*capabilities: int) -> None:
    """Give up core dumps, tracers, and all capabilities but these, which the caller needn't have."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl.set_dumpable(False)
    prctl.set_no_new_privileges()
    held = caps.get().permitted
    if held and os.geteuid() == 0:
        caps.drop_bounding()
    caps.keep_only(*(capability for capability in capabilities if held & caps.mask_of(capability)))


def code() -> tuple[str, ...]:
    """Return the paths from which Python may load modules late."""
    return (*filter(os.path.isabs, sys.path), sys.prefix, sys.base_prefix, "/usr", "/lib", "/lib64", "/dev")


def limit(number: int, value: int) -> int:
    """Set soft and hard limit of resource `number`. Return the effective value, at most the old hard limit."""
    hard = resource.getrlimit(number)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    try:
        resource.setrlimit(number, (value, value))
    except (OSError, ValueError) as error:
        raise failure(getattr(error, "errno", None) or 1, ("setrlimit", number, value)) from None
    return value
