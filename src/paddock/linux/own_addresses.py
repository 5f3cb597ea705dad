"""Which addresses are this machine's own."""

from __future__ import annotations

import socket


def is_own(address: str) -> bool:
    """Whether it is one of this machine's: then packets to it come from it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return False
        return probe.getsockname()[0] == address
