"""Resource limits of the calling process (setrlimit(2))."""

from __future__ import annotations

import resource
from typing import NamedTuple

from paddock.linux._syscall import failure


class ResourceLimits(NamedTuple):
    """What each process may use. None: left as it is. Soft and hard limit are the same, so that nobody raises it."""

    open_files: int | None = None
    processes: int | None = None
    core_bytes: int | None = 0
    file_bytes: int | None = None
    locked_bytes: int | None = None
    message_queue_bytes: int | None = None


_RESOURCES = (
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_NPROC,
    resource.RLIMIT_CORE,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_MEMLOCK,
    resource.RLIMIT_MSGQUEUE,
)


def apply(limits: ResourceLimits) -> None:
    """Sets them. What is above the present hard limit becomes that: raising it takes CAP_SYS_RESOURCE."""
    for number, value in zip(_RESOURCES, limits, strict=True):
        if value is not None:
            set_limit(number, value)


def set_limit(number: int, value: int) -> int:
    """Sets soft and hard limit of resource `number`; returns the value that holds, at most the old hard limit."""
    hard = resource.getrlimit(number)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    try:
        resource.setrlimit(number, (value, value))
    except (OSError, ValueError) as error:
        raise failure(getattr(error, "errno", None) or 1, ("setrlimit", number, value)) from None
    return value
