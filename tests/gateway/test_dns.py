"""Names are answered from what is known; nothing malformed gets more than an error, and nobody else is asked."""

from __future__ import annotations

from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.gateway.protocols.dns import Denied, answer, frame, take_queries

KNOWN = {"api.example.com": "198.18.1.0"}


def lookup(name: str) -> str | Denied:
    return KNOWN.get(name, Denied.NAME)


def ask(name: str, kind: str = "A", **options: Any) -> Any:
    wire = answer(dns.message.make_query(name, kind, **options).to_wire(), lookup, udp=True)
    assert wire is not None
    return dns.message.from_wire(wire)


def test_an_allowed_name_has_an_address() -> None:
    reply = ask("API.example.com.")
    assert reply.rcode() == dns.rcode.NOERROR
    assert [str(record) for record in reply.answer[0]] == ["198.18.1.0"]
    assert str(reply.answer[0].name) == "API.example.com."  # in the spelling of the question
    assert reply.flags & dns.flags.RA


@pytest.mark.parametrize("kind", ["AAAA", "TXT", "MX", "HTTPS", "NULL", "ANY", "CNAME", "SOA"])
def test_other_types_have_no_data(kind: str) -> None:
    reply = ask("api.example.com", kind)
    assert (reply.rcode(), reply.answer, reply.authority) == (dns.rcode.NOERROR, [], [])


@pytest.mark.parametrize("kind", ["A", "AAAA", "TXT"])
def test_another_name_does_not_exist(kind: str) -> None:
    assert ask("evil.test", kind).rcode() == dns.rcode.NXDOMAIN
    assert ask(".", kind).rcode() == dns.rcode.NXDOMAIN
    assert ask("b\\000\\.ad.example.com", kind).rcode() == dns.rcode.NXDOMAIN


def test_zone_transfers_classes_and_operations_are_refused() -> None:
    assert ask("api.example.com", "AXFR").rcode() == dns.rcode.REFUSED
    assert ask("api.example.com", "A", rdclass="CH").rcode() == dns.rcode.REFUSED
    update = dns.message.make_query("api.example.com", "A")
    update.set_opcode(5)
    wire = answer(update.to_wire(), lookup, udp=True)
    assert wire is not None
    assert dns.message.from_wire(wire[:12]).rcode() == dns.rcode.NOTIMP


def test_edns_and_its_versions() -> None:
    assert ask("api.example.com", use_edns=0, payload=4096).edns == 0
    assert ask("api.example.com", use_edns=1).rcode() == dns.rcode.BADVERS


def test_an_answer_is_never_answered() -> None:
    query = dns.message.make_query("api.example.com", "A")
    assert answer(dns.message.make_response(query).to_wire(), lookup, udp=True) is None
    assert answer(b"short", lookup, udp=True) is None


@given(st.binary(max_size=64), st.integers(0, 63), st.integers(0, 255))
def test_garbage_gets_an_error_or_nothing(garbage: bytes, at: int, value: int) -> None:
    query = bytearray(dns.message.make_query("api.example.com", "A", use_edns=0).to_wire())
    query[at % len(query)] = value
    for data in (garbage, bytes(query)):
        reply = answer(data, lookup, udp=True)
        if reply is not None:
            assert reply[:2] == data[:2]
            assert reply[2] & 0x80
            assert len(reply) <= 1232


@given(st.lists(st.binary(max_size=40), max_size=5), st.lists(st.integers(0, 20), max_size=20))
def test_queries_over_tcp_cut_anywhere(queries: list[bytes], sizes: list[int]) -> None:
    data, buffer, found, at = b"".join(map(frame, queries)), bytearray(), [], 0
    for size in [*sizes, len(data)]:
        buffer += data[at : at + size]
        found += take_queries(buffer)
        at += size
    assert found == queries


def test_a_query_that_is_too_long_ends_it() -> None:
    with pytest.raises(ValueError, match="65535 bytes"):
        list(take_queries(bytearray(b"\xff\xff")))
