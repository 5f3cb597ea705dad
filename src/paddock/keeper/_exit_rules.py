"""What the packets of a sandbox with exits may do. Its namespace has `lo` and nothing else, and every address is local
to it (`linux.routes`): the rules lead to the gateway's sockets, they keep nothing from a way out, for there is none."""

from __future__ import annotations

from functools import cache
from socket import AF_INET, AF_INET6, IPPROTO_ICMP, IPPROTO_ICMPV6, IPPROTO_TCP, IPPROTO_UDP

from paddock.linux import nft

TCP_PORT = 15001
DNS_PORT = 15053
DOMAIN = 53
# Of what a connection or a question costs the kernel, no sandbox pays for the record of whom it was for: so many may
# be under way as come in some minutes at this pace. Far above what programs do.
_CONNECTIONS_PER_SECOND, _QUESTIONS_PER_SECOND, _BURST = 1000, 500, 2000

_TCP, _UDP = nft.protocol(IPPROTO_TCP), nft.protocol(IPPROTO_UDP)
_ASKS = nft.destination(DOMAIN)


@cache
def rules() -> bytes:
    """The batch. What programs inside say to each other over loopback is not tracked, and so never redirected; nobody
    in there may listen on port 53, so that what goes there, even over loopback, is for the gateway."""
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
            (*nft.for_loopback(AF_INET), nft.jump("within")),
            (*nft.for_loopback(AF_INET6), nft.jump("within")),
            (_TCP, nft.opens(), nft.above(_CONNECTIONS_PER_SECOND, _BURST), nft.reset()),
            (_TCP, nft.accept()),
            # What the kernel itself answers to somebody who gave himself another address.
            (nft.protocol(IPPROTO_ICMP), nft.starts(b"\x03"), nft.accept()),
            (nft.protocol(IPPROTO_ICMPV6), nft.starts(b"\x01"), nft.accept()),
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
