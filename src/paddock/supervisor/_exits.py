"""Make the only network access of a sandbox: sockets of the gateway that listen in its network namespace.

The supervisor makes them before foreign code runs there, and holds them while the sandbox lives. Without a gateway,
connections wait. The workload runs in another user namespace and so has no power over the network.

The network has `lo` alone, and every address is local to it (`linux.routes`). The rules lead to the gateway's sockets.
They don't have to block anything, because the network has no other interface.
"""

from __future__ import annotations

import errno
import socket
from functools import cache

from paddock.linux import descriptors, namespaces, nft, routes, sock_diag
from paddock.linux.descriptors import closing
from paddock.supervisor._errors import JailError
from paddock.supervisor._namespaces import open_of, visit

TCP_PORT = 15001
DNS_PORT = 15053
DOMAIN = 53
# The kernel charges no sandbox for its records of connections and DNS questions. So paddock limits their rate, far
# above what programs need. As many may be under way as come in some minutes at this pace.
_CONNECTIONS_PER_SECOND, _QUESTIONS_PER_SECOND, _BURST = 1000, 500, 2000

_TCP, _UDP = nft.protocol(socket.IPPROTO_TCP), nft.protocol(socket.IPPROTO_UDP)
_ASKS = nft.destination(DOMAIN)
BACKLOG = 512
_WITHOUT_VERSION_6 = 4


Exits = tuple[socket.socket, ...]
"""A socket for connections for each version of IP, two for DNS (datagrams and connections), and one for
`linux.sock_diag`."""


def close(exits: Exits) -> None:
    for one in exits:
        one.close()


def make(network: int, *, may_return: bool) -> Exits:
    """Make rules, routes and sockets in a namespace that has `lo` alone. Raises OSError, JailError.

    The supervisor of an ordinary user can't return to the machine's network once it left (`may_return`): a child goes
    instead.
    """
    if not may_return:
        return _by_child(network)
    with closing(open_of("self", "net")) as home, visit(namespaces.NEWNET, network, home):
        return build_here()


def listen_again(network: int) -> Exits:
    """Return new sockets after the supervisor that made the first ones died. Raises OSError EADDRINUSE if the gateway
    still has them."""
    with closing(open_of("self", "net")) as home, visit(namespaces.NEWNET, network, home):
        return listen_here()


def build_here() -> Exits:
    """Do as `make` does, in the caller's own namespace."""
    nft.load(rules())
    try:
        made = listen_here()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:  # of a sandbox that runs already
            raise JailError("a program inside listens at a port that the gateway needs") from None
        raise
    try:
        # Last: before, nothing is reachable.
        routes.keep_everything(version_6=len(made) > _WITHOUT_VERSION_6)
    except BaseException:
        close(made)
        raise
    return made


def listen_here() -> Exits:
    """Do as `listen_again` does, in the caller's own namespace."""
    made: list[socket.socket] = []
    try:
        both = _has_version_6()
        made.append(_bound(socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1", TCP_PORT))
        if both:
            made.append(_bound(socket.AF_INET6, socket.SOCK_STREAM, "::1", TCP_PORT))
        family, address = (socket.AF_INET6, "::") if both else (socket.AF_INET, "127.0.0.1")
        made += [_bound(family, kind, address, DNS_PORT) for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM)]
        made.append(sock_diag.open_here())
    except BaseException:
        close(tuple(made))
        raise
    return tuple(made)


def _bound(family: int, kind: int, address: str, port: int) -> socket.socket:
    made = socket.socket(family, kind)
    try:
        if address == "::":
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if kind == socket.SOCK_STREAM:  # with it, others could listen beside one for datagrams
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
        if kind == socket.SOCK_STREAM:
            made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def _has_version_6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def _by_child(network: int) -> Exits:
    def make() -> list[int]:
        namespaces.setns(network, namespaces.NEWNET)
        return [one.detach() for one in build_here()]

    try:
        return tuple([socket.socket(fileno=fd) for fd in descriptors.of_child(make)])
    except ChildProcessError as error:
        raise JailError(f"the exits could not be made: {error.strerror}") from None


@cache
def rules() -> bytes:
    """Return the batch. Loopback traffic between programs inside isn't tracked, and so never redirected. Programs
    inside can't listen on port 53: DNS goes to the gateway, even over loopback."""
    within = nft.Chain(
        "within",
        (
            (_TCP, _ASKS, nft.accept()),
            # The gateway accepts only connections that were meant for another address.
            (_TCP, nft.destination(TCP_PORT), nft.reset()),
            (_TCP, nft.destination(DNS_PORT), nft.reset()),
            (_UDP, nft.destination(DNS_PORT), nft.prohibited()),
            (nft.untracked(), nft.accept()),
        ),
    )
    judged = nft.Chain(
        "judged",
        (
            (_UDP, _ASKS, nft.above(_QUESTIONS_PER_SECOND, _BURST), nft.prohibited()),
            (_UDP, _ASKS, nft.accept()),
            (_TCP, nft.source(TCP_PORT), nft.accept()),
            (_TCP, nft.source(DNS_PORT), nft.accept()),
            (_UDP, nft.source(DNS_PORT), nft.accept()),
            (*nft.for_loopback(socket.AF_INET), nft.jump("within")),
            (*nft.for_loopback(socket.AF_INET6), nft.jump("within")),
            (_TCP, nft.opens(), nft.above(_CONNECTIONS_PER_SECOND, _BURST), nft.reset()),
            (_TCP, nft.accept()),
            # ICMP errors: the kernel's answers to a program that took another source address.
            (nft.protocol(socket.IPPROTO_ICMP), nft.starts(b"\x03"), nft.accept()),
            (nft.protocol(socket.IPPROTO_ICMPV6), nft.starts(b"\x01"), nft.accept()),
            (nft.prohibited(),),
        ),
        "filter",
        nft.RAW,
    )
    redirected = nft.Chain(
        "redirected",
        (
            (_UDP, _ASKS, nft.redirect(DNS_PORT)),
            (_TCP, _ASKS, nft.redirect(DNS_PORT)),
            (_TCP, nft.redirect(TCP_PORT)),
        ),
        "nat",
        nft.DESTINATION_NAT,
    )
    return nft.batch("paddock", (within, judged, redirected))
