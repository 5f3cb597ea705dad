"""The only way out of a sandbox: sockets of the gateway's that listen in its network namespace.

Made once, before anything foreign runs there, and held as long as it lives: while there is no gateway, whoever calls
waits. In a namespace of its own the workload has no power over the network's.

That has `lo` and nothing else, and every address is local to it (`linux.routes`): the rules lead to the gateway's
sockets, they keep nothing from a way out, for there is none.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from paddock.linux import namespaces, nft, routes, sock_diag
from paddock.linux.descriptors import closing
from paddock.supervisor._door import visit
from paddock.supervisor._errors import JailError

TCP_PORT = 15001
DNS_PORT = 15053
DOMAIN = 53
# Of what a connection or a question costs the kernel, no sandbox pays for the record of whom it was for: so many may
# be under way as come in some minutes at this pace. Far above what programs do.
_CONNECTIONS_PER_SECOND, _QUESTIONS_PER_SECOND, _BURST = 1000, 500, 2000

_TCP, _UDP = nft.protocol(socket.IPPROTO_TCP), nft.protocol(socket.IPPROTO_UDP)
_ASKS = nft.destination(DOMAIN)
BACKLOG = 512
_OWN = "/proc/self/ns/net"
_WORDS_BYTES = 4096
_WITHOUT_VERSION_6 = 4


class Exits(NamedTuple):
    """Connections to anywhere, one socket for each version of IP; questions, by datagram and by connection; and one
    that tells about connections in that network (`linux.sock_diag`)."""

    all: tuple[socket.socket, ...]

    def close(self) -> None:
        for one in self.all:
            one.close()


def open_network(pid: int) -> int:
    """Return a descriptor of the network namespace of `pid`. As root only: the kernel shows an ordinary user that of no
    process that is not dumpable. OSError."""
    return os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def make(network: int, *, may_return: bool) -> Exits:
    """Rules, routes and sockets in a namespace that has `lo` and nothing else. OSError, JailError.

    An ordinary user's supervisor that left the machine's network could not come back (`may_return`): a child of it
    goes.
    """
    if not may_return:
        return _by_child(network)
    with closing(os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)) as home, visit(namespaces.NEWNET, network, home):
        return build_here()


def listen_again(network: int) -> Exits:
    """Return the sockets alone, where the supervisor that made them is dead. OSError EADDRINUSE: the gateway still has
    them."""
    with closing(os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)) as home, visit(namespaces.NEWNET, network, home):
        return listen_here()


def build_here() -> Exits:
    """As `make`, in the caller's own namespace."""
    nft.load(rules())
    try:
        made = listen_here()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:  # of a sandbox that runs already
            raise JailError("a program inside listens at a port that the gateway needs") from None
        raise
    try:
        # Last: before, nothing is reachable.
        routes.keep_everything(version_6=len(made.all) > _WITHOUT_VERSION_6)
    except BaseException:
        made.close()
        raise
    return made


def listen_here() -> Exits:
    """As `listen_again`, in the caller's own namespace."""
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
        for one in made:
            one.close()
        raise
    return Exits(tuple(made))


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
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        pid = os.fork()
        if pid == 0:
            _be_the_child(network, theirs)
        theirs.close()
        try:
            data, fds, _, _ = socket.recv_fds(ours, _WORDS_BYTES, 5)
        finally:
            os.waitpid(pid, 0)
    if not fds:
        words = data.decode(errors="replace") or "the process that was to make them died"
        raise JailError(f"the exits could not be made: {words}")
    return Exits(tuple([socket.socket(fileno=fd) for fd in fds]))


def _be_the_child(network: int, peer: socket.socket) -> None:
    try:
        namespaces.setns(network, namespaces.NEWNET)
        made = build_here()
        socket.send_fds(peer, [b"made"], [one.fileno() for one in made.all])
    except BaseException as error:
        with suppress(OSError):
            peer.send(f"{type(error).__name__}: {error}".encode()[:_WORDS_BYTES])
    finally:
        sys.stderr.flush()
        os._exit(0)


@cache
def rules() -> bytes:
    """Return the batch. What programs inside say to each other over loopback is not tracked, and so never redirected;
    nobody in there may listen on port 53, so that what goes there, even over loopback, is for the gateway."""
    within = nft.Chain(
        "within",
        (
            (_TCP, _ASKS, nft.accept()),
            # The gateway speaks with those alone who called somebody else.
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
            # What the kernel itself answers to somebody who gave himself another address.
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
