"""Give network access, host directories and masks of /proc to a container that the machine's engine made.

It runs as a separate program, which the holder of a pidfd of the container's pid 1 starts. It enters the namespaces of
that process, hands over the sockets that it made, and never leaves. As an ordinary user it enters through the user
namespace of the engine, which belongs to the same user (user_namespaces(7)).

Files inside may be an attacker's. So it imports all that it needs before it enters, and disables imports.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import sys
from typing import Any

from paddock.linux import mounts, namespaces, netlink, prctl
from paddock.linux.descriptors import closing
from paddock.supervisor import _exits, _places, trust_places
from paddock.supervisor._errors import JailError

# `python -I -S -c START SOURCE`: orders and descriptors come through the socket that is its stdin.
START = "import sys;sys.path.insert(0,sys.argv[1]);from paddock.supervisor.namespace_entry import main;main()"
MADE, TAKEN = b"made", b"taken"
TOLD = "told"
"""The directory below `shown` with the files that cover some of /proc and /sys."""
MOST_BYTES = 60_000
MOST_MOUNTS = 16
_WORDS_BYTES = 4096
_SIOCGSKNS = 0x894C  # linux/sockios.h


def main() -> None:
    """Read one request and carry it out: `{"pid": 4711, "exits": true, "again": false, "shown": "...", "mounts":
    ["/target"], "protect": [], "masks": {"proc/swaps": "empty"}}`.

    With it come a pidfd of that process and one descriptor of each mount. The answer is MADE with the sockets, TAKEN,
    or an error's text.
    """
    peer = socket.socket(fileno=0)
    data, fds, _, _ = socket.recv_fds(peer, MOST_BYTES, 1 + MOST_MOUNTS)
    if not data:  # no container is there to enter
        return
    try:
        prctl.set_dumpable(False)
        made = _make(json.loads(data), fds[0], fds[1:])
        socket.send_fds(peer, [MADE], [] if made is None else [one.fileno() for one in made])
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            peer.send(TAKEN)
        else:
            words = str(error) if isinstance(error, JailError) else f"{type(error).__name__}: {error}"
            peer.send(words.encode()[:_WORDS_BYTES])


def _mask(directory: bytes, masks: dict[str, str]) -> None:
    """Cover files of /proc with those in `directory`, and the engine's /sys with its own. The control groups stay."""
    with closing(_copy(b"sys/fs/cgroup")) as groups:
        for target, source in masks.items():
            with closing(_copy(directory + b"/" + os.fsencode(source))) as made:
                _places.move(made, os.fsencode(target), os.O_PATH)
        _places.move(groups, b"sys/fs/cgroup")


def _copy(path: bytes) -> int:
    with closing(_places.find(path)) as found:
        return mounts.open_tree(b"", found, recursive=True)


def _network() -> int:
    """Return the inode of this network namespace by ioctl: /proc may show another's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as some:
        namespace = fcntl.ioctl(some.fileno(), _SIOCGSKNS)
    with closing(namespace):
        return os.fstat(namespace).st_ino


def _make(orders: dict[str, Any], process: int, attached: list[int]) -> _exits.Exits | None:
    flags = namespaces.NEWNS | namespaces.NEWNET
    if os.stat(f"/proc/{orders['pid']}/ns/user").st_ino != os.stat("/proc/self/ns/user").st_ino:
        flags |= namespaces.NEWUSER
    home = os.stat("/proc/self/ns/net").st_ino
    sys.meta_path.clear()
    sys.path.clear()
    namespaces.setns(process, flags)
    if _network() == home:  # a container that has died, and a program of the machine's has its number
        raise JailError("it is in the machine's own network, as no container is")
    os.chdir("/")
    if orders["again"]:
        return _exits.listen_here()
    if orders["masks"]:
        _mask(os.fsencode(orders["shown"]).strip(b"/") + b"/" + TOLD.encode(), orders["masks"])
    _places.attach(None, list(zip(orders["mounts"], attached, strict=True)))
    _places.protect(tuple(orders["protect"]))
    if not orders["exits"]:
        return None
    trust_places.attach_shown(os.fsencode(orders["shown"]))
    netlink.set_loopback_up()
    return _exits.build_here()
