"""A machine whose internet is a test's: `python -m tests.acceptance.world COMMAND...` becomes COMMAND there.

It has a network and a mount namespace of its own. Every connection and every datagram to anywhere but loopback ends at
`TCP_PORT` and `UDP_PORT` of this machine; every name is asked for at `RESOLVER`. An ordinary user stays one: the user
namespace that this takes has no other ids but his subordinate ones, and its capabilities go with the exec.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import tempfile
from pathlib import Path

from paddock.linux import mounts, namespaces, netlink, nft, prctl, routes, subordinate_ids
from paddock.linux.namespaces import IdMap
from tests.backends.engines import NAMESPACE

RESOLVER = "127.0.0.77"
OWN_ADDRESS = "93.184.216.77"
"""By which others would know this machine."""
TCP_PORT, UDP_PORT = 9001, 9002
IMPOSSIBLE = 77
"""The exit status where this machine allows no such thing; why is on stderr."""

_RTM_NEWADDR, _NLM_F_CREATE, _NETLINK_ROUTE = 20, 0x400, 0
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_FILES = {
    "resolv.conf": f"nameserver {RESOLVER}\noptions timeout:5 attempts:2\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
}


def enter() -> int | None:
    """OSError. For a process without threads. The uid of an ordinary user who has subordinate ids here."""
    uid = os.getuid()
    granted = subordinate_ids.granted() if 1 < uid < subordinate_ids.COUNT - 1 else ""
    if uid:
        _enter_users(granted)
    namespaces.unshare(namespaces.NEWNS | namespaces.NEWNET)
    mounts.make_all_private()
    with tempfile.TemporaryDirectory() as directory:
        for name, text in _FILES.items():
            path, place = Path(directory, name), os.path.realpath(f"/etc/{name}")
            path.write_text(text)
            if os.path.exists(place):
                mounts.bind(os.fsencode(path), mounts.AT_FDCWD, os.fsencode(place))
    netlink.set_loopback_up()
    _take_address(socket.inet_aton(OWN_ADDRESS))
    Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")
    nft.load(_rules())
    routes.keep_everything(version_6=os.path.exists("/proc/net/if_inet6"))
    return None if isinstance(granted, str) else uid


def _enter_users(granted: subordinate_ids.SubordinateIds | str) -> None:
    uid, gid = os.getuid(), os.getgid()
    if not isinstance(granted, str):
        namespaces.setns(subordinate_ids.open_namespace(granted, uid))
        return
    namespaces.unshare(namespaces.NEWUSER)
    namespaces.write_id_maps(os.getpid(), [IdMap(uid, uid, 1)], [IdMap(gid, gid, 1)], deny_setgroups=True)


def _take_address(address: bytes) -> None:
    body = struct.pack("=4BI", socket.AF_INET, 32, 0, 0, 1)  # struct ifaddrmsg, of `lo`
    body += netlink.attribute(_IFA_LOCAL, address) + netlink.attribute(_IFA_ADDRESS, address)
    message = netlink.message(_RTM_NEWADDR, netlink.ACK | _NLM_F_CREATE, body)
    netlink.send(_NETLINK_ROUTE, message, acknowledgements=1, what="take an address")


def _rules() -> bytes:
    rules = (
        (*nft.for_loopback(socket.AF_INET), nft.accept()),
        (*nft.for_loopback(socket.AF_INET6), nft.accept()),
        (nft.protocol(socket.IPPROTO_TCP), nft.redirect(TCP_PORT)),
        (nft.protocol(socket.IPPROTO_UDP), nft.redirect(UDP_PORT)),
    )
    return nft.batch("world", (nft.Chain("out", rules, "nat", nft.DESTINATION_NAT),))


def main() -> None:
    try:
        uid = enter()
        if uid is not None:
            _stay_beside(uid)
    except OSError as error:
        print(f"a machine with an internet of its own can't be made: {error}", file=sys.stderr)
        sys.exit(IMPOSSIBLE)
    os.execvp(sys.argv[1], sys.argv[1:])


def _stay_beside(uid: int) -> None:
    """Returns in a child. The parent stays in a user namespace in which the caller is root: what a container engine
    makes for itself elsewhere, and can't here, where the owner of newuidmap has no id."""
    reader, writer = os.pipe()
    first = os.getpid()
    if (child := os.fork()) == 0:
        prctl.set_parent_death_signal(signal.SIGKILL)
        os.close(writer)
        if os.read(reader, 1):
            swapped = [IdMap(0, uid, 1), IdMap(1, 1, uid - 1), IdMap(uid, 0, 1)]
            swapped.append(IdMap(uid + 1, uid + 1, subordinate_ids.COUNT - uid - 1))
            namespaces.write_id_maps(first, swapped, swapped)
        os.close(reader)
        os.environ[NAMESPACE] = str(first)
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.close(reader)
    namespaces.unshare(namespaces.NEWUSER | namespaces.NEWNS)
    os.write(writer, b".")
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
