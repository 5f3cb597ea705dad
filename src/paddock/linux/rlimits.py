"""Resource limits of the calling process (setrlimit(2))."""

from __future__ import annotations

import resource

from paddock.linux._syscall import failure


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
