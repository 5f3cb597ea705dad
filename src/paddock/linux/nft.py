"""Packet filter rules as one nfnetlink batch, built by hand (include/uapi/linux/netfilter/nf_tables.h).

A rule is a tuple of expressions, evaluated from the left. Each passes a packet to the next one or ends the rule. The
last one decides about it.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

from paddock.linux import netlink
from paddock.linux.netlink import attribute

Expression = bytes
Rule = Sequence[Expression]

_NETLINK_NETFILTER = 12
_SUBSYSTEM = 10
_BATCH_BEGIN, _BATCH_END = 16, 17
_NEW_TABLE, _NEW_CHAIN, _NEW_RULE = (_SUBSYSTEM << 8 | kind for kind in (0, 3, 6))
_CREATE, _APPEND = 0x400, 0x800
_NESTED = 0x8000
_INET = 1  # NFPROTO_INET: both versions of IP
_OUTPUT = 3  # NF_INET_LOCAL_OUT

_VALUE, _VERDICT = 1, 2
_REGISTER, _VERDICT_REGISTER = 1, 0
_ACCEPT, _JUMP = 1, 0xFFFF_FFFD
_NETWORK, _TRANSPORT = 1, 2
_META_FAMILY, _META_PROTOCOL = 15, 16

RAW, DESTINATION_NAT = -300, -100
"""Priorities: before connection tracking, and at address translation."""


class Chain(NamedTuple):
    """A chain. `kind` and `priority` are the ones of a base chain. Without them, other chains jump to it."""

    name: str
    rules: tuple[Rule, ...]
    kind: str | None = None
    priority: int = 0


def batch(table: str, chains: Sequence[Chain]) -> bytes:
    """Return the table, all or nothing, with one acknowledgement. Chains come before those that jump to them."""
    messages = [_message(_BATCH_BEGIN, b"", family=0, resource=_SUBSYSTEM)]
    messages.append(_message(_NEW_TABLE, _text(1, table)))
    messages += [_message(_NEW_CHAIN, _chain(table, chain)) for chain in chains]
    rules = [_rule(table, chain.name, rule) for chain in chains for rule in chain.rules]
    messages += [_message(_NEW_RULE, rule, flags=_APPEND) for rule in rules[:-1]]
    messages.append(_message(_NEW_RULE, rules[-1], flags=_APPEND | netlink.ACK))
    messages.append(_message(_BATCH_END, b"", family=0, resource=_SUBSYSTEM))
    return b"".join(messages)


def load(data: bytes) -> None:
    """Put a batch into force in this network namespace. It needs CAP_NET_ADMIN over it. Raises OSError."""
    netlink.send(_NETLINK_NETFILTER, data, acknowledgements=1, what="load packet filter rules")


# -- expressions


def accept() -> Expression:
    return _immediate(_VERDICT_REGISTER, _nested(_VERDICT, _number(1, _ACCEPT)))


def jump(chain: str) -> Expression:
    return _immediate(_VERDICT_REGISTER, _nested(_VERDICT, _number(1, _JUMP) + _text(2, chain)))


def protocol(number: int) -> Expression:
    """Packets of socket.IPPROTO_TCP and so on."""
    return _meta(_META_PROTOCOL) + _equals(bytes((number,)))


def destination(port: int) -> Expression:
    return _transport(2, struct.pack("!H", port))


def source(port: int) -> Expression:
    return _transport(0, struct.pack("!H", port))


def starts(data: bytes) -> Expression:
    """Packets whose transport header begins so."""
    return _transport(0, data)


def for_loopback(family: int) -> Rule:
    """Packets for 127.0.0.0/8 or ::1."""
    version = _meta(_META_FAMILY) + _equals(bytes((family,)))
    if family == socket.AF_INET:
        return version, _payload(_NETWORK, 16, 1), _equals(b"\x7f")
    return version, _payload(_NETWORK, 24, 16), _equals(bytes(15) + b"\x01")


def opens() -> Expression:
    """Return the first packet of a TCP connection: SYN without ACK."""
    flags = b"\x12"
    mask = _number(1, _REGISTER) + _number(2, _REGISTER) + _number(3, 1)
    mask += _nested(4, attribute(_VALUE, flags)) + _nested(5, attribute(_VALUE, b"\0"))
    return _payload(_TRANSPORT, 13, 1) + _expression("bitwise", mask) + _equals(b"\x02")


def above(per_second: int, burst: int) -> Expression:
    """Packets that come faster than that."""
    rate = attribute(1, struct.pack("!Q", per_second)) + attribute(2, struct.pack("!Q", 1))
    return _expression("limit", rate + _number(3, burst) + _number(4, 0) + _number(5, 1))


def untracked() -> Expression:
    """Exclude the packet from connection tracking, and so from address translation."""
    return _expression("notrack", b"")


def reset() -> Expression:
    return _expression("reject", _number(1, 1))


def prohibited() -> Expression:
    """Reject with ICMP: communication administratively prohibited. A local sender gets EPERM."""
    return _expression("reject", _number(1, 2) + attribute(2, b"\x03"))


def redirect(port: int) -> Expression:
    """Redirect to that port of this machine's loopback address."""
    return _immediate(_REGISTER, attribute(_VALUE, struct.pack("!H", port))) + _expression("redir", _number(1, 1))


# -- attributes


def _message(kind: int, body: bytes, *, flags: int = 0, family: int = _INET, resource: int = 0) -> bytes:
    return netlink.message(kind, flags | _CREATE, struct.pack("!BBH", family, 0, resource) + body)


def _chain(table: str, chain: Chain) -> bytes:
    body = _text(1, table) + _text(3, chain.name)
    if chain.kind is None:
        return body
    hook = _number(1, _OUTPUT) + attribute(2, struct.pack("!i", chain.priority))
    return body + _nested(4, hook) + _text(7, chain.kind)


def _rule(table: str, chain: str, rule: Rule) -> bytes:
    return _text(1, table) + _text(2, chain) + _nested(4, b"".join(rule))


def _expression(name: str, data: bytes) -> bytes:
    return _nested(1, _text(1, name) + _nested(2, data))


def _immediate(register: int, data: bytes) -> bytes:
    return _expression("immediate", _number(1, register) + _nested(2, data))


def _meta(key: int) -> bytes:
    return _expression("meta", _number(1, _REGISTER) + _number(2, key))


def _payload(base: int, offset: int, length: int) -> bytes:
    return _expression("payload", _number(1, _REGISTER) + _number(2, base) + _number(3, offset) + _number(4, length))


def _transport(offset: int, data: bytes) -> bytes:
    return _payload(_TRANSPORT, offset, len(data)) + _equals(data)


def _equals(data: bytes) -> bytes:
    return _expression("cmp", _number(1, _REGISTER) + _number(2, 0) + _nested(3, attribute(_VALUE, data)))


def _nested(kind: int, data: bytes) -> bytes:
    return attribute(kind | _NESTED, data)


def _number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("!I", value))


def _text(kind: int, text: str) -> bytes:
    return attribute(kind, text.encode() + b"\0")
