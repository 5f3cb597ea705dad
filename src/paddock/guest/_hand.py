"""Handing descriptors of the host's on, to a process of its own that runs inside beside the agent.

That process has a datagram socket with a name in the network namespace: no path in a tree leads there, and the agent
carries no bytes for it.
"""

from __future__ import annotations

import errno
import os
import socket

from . import _requests as requests
from ._faults import Fault
from ._frames import Json


def hand(request: Json, descriptors: list[int]) -> None:
    """Sends them, with the text `say`, to the socket of the name `to`. Fault: it is not there, or full."""
    name = requests.identifier(request, "to")
    say = requests.identifier(request, "say").encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        try:
            sender.connect(b"\0" + name.encode())
            socket.send_fds(sender, [say], descriptors)
        except OSError as error:
            code = errno.errorcode.get(error.errno or 0)
            raise Fault("sandbox", f"nobody takes it at {name!r}: {os.strerror(error.errno or 0)}", name=code) from None
