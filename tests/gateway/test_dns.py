"""Names are answered from what is known; nothing malformed gets more than an error, and nobody else is asked."""

from __future__ import annotations

import struct
from typing import Any

import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.gateway.protocols.dns import Denied, answer, frame, take_queries

KNOWN = {"api.example.com": "198.18.1.0"}


def lookup(name: str) -> str | Denied:
    return KNOWN.get(name, Denied.NAME)


def ask(name: str, kind: str = "A", **options: Any) -> Any:
    wire = answer(dns.message.make_query(name, kind, **options).to_wire(), lookup)
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
    wire = answer(update.to_wire(), lookup)
    assert wire is not None
    assert dns.message.from_wire(wire[:12]).rcode() == dns.rcode.NOTIMP


def test_edns_and_its_versions() -> None:
    assert ask("api.example.com", use_edns=0, payload=4096).edns == 0
    assert ask("api.example.com", use_edns=1).rcode() == dns.rcode.BADVERS


def test_an_answer_is_never_answered() -> None:
    query = dns.message.make_query("api.example.com", "A")
    assert answer(dns.message.make_response(query).to_wire(), lookup) is None
    assert answer(b"short", lookup) is None


@given(st.binary(max_size=64), st.integers(0, 63), st.integers(0, 255))
def test_garbage_gets_an_error_or_nothing(garbage: bytes, at: int, value: int) -> None:
    query = bytearray(dns.message.make_query("api.example.com", "A", use_edns=0).to_wire())
    query[at % len(query)] = value
    for data in (garbage, bytes(query)):
        reply = answer(data, lookup)
        if reply is not None:
            assert reply[:2] == data[:2]
            assert reply[2] & 0x80
            assert len(reply) <= 1232


def theirs(query: bytes) -> bytes | None:
    """The answer that dnspython makes; None if it can't read the query."""
    try:
        message: Any = dns.message.from_wire(query, one_rr_per_rrset=True)
    except (dns.exception.DNSException, ValueError, IndexError):
        return None
    if len(message.question) != 1 or message.answer or message.authority or message.additional:
        return None
    response: Any = dns.message.make_response(message, recursion_available=True, our_payload=1232)
    question = message.question[0]
    if question.rdclass != dns.rdataclass.IN or question.rdtype in (dns.rdatatype.AXFR, dns.rdatatype.IXFR):
        response.set_rcode(dns.rcode.REFUSED)
    elif message.edns > 0:
        response.set_rcode(dns.rcode.BADVERS)
    else:
        found = lookup(question.name.to_text(omit_final_dot=True).lower())
        if isinstance(found, Denied):
            response.set_rcode(found.value)
        elif question.rdtype == dns.rdatatype.A:
            response.answer.append(dns.rrset.from_text(question.name, 60, "IN", "A", found))
    return response.to_wire()  # type: ignore[no-any-return]


LABELS = st.one_of(
    st.sampled_from([b"api", b"EXAMPLE", b"com", b"a" * 63, b"a.b", b"\\", b"\xfc"]), st.binary(max_size=63)
)
NAMES = st.one_of(
    st.just([b"API", b"example", b"com"]), st.lists(LABELS.filter(bool), max_size=5), st.just([b"a" * 49] * 5)
)


@given(
    NAMES,
    st.sampled_from([1, 2, 28, 41, 65, 250, 251, 252, 255]),
    st.sampled_from([1, 1, 1, 3, 255]),
    st.sampled_from([None, 0, 0, 1, 255]),
    st.integers(0, 0xFF),
    st.booleans(),
)
def test_a_query_is_answered_as_dnspython_answers_it(
    labels: list[bytes], kind: int, rdclass: int, version: int | None, flags: int, recursive: bool
) -> None:
    name = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    header = b"id" + bytes([recursive, flags]) + struct.pack("!4H", 1, 0, 0, version is not None)
    edns = b"" if version is None else struct.pack("!xHHBBHH", 41, 4096, 0, version, 0x8000, 0)
    query = header + name + struct.pack("!HH", kind, rdclass) + edns
    reply = answer(query, lookup)
    assert reply is not None
    expected = theirs(query)
    if expected is None:
        assert dns.message.from_wire(reply).rcode() == dns.rcode.FORMERR
    else:
        assert reply == expected


@given(st.integers(0, 70), st.integers(0, 255), st.integers(0, 4), st.booleans())
def test_what_dnspython_cannot_read_is_not_answered(at: int, value: int, cut: int, edns: bool) -> None:
    query = bytearray(dns.message.make_query("api.example.com", "A", use_edns=0 if edns else False).to_wire())
    query[at % len(query)] = value
    del query[len(query) - cut :]
    reply = answer(bytes(query), lookup)
    if reply is not None and theirs(bytes(query)) is None:
        assert dns.message.from_wire(reply).rcode() in (dns.rcode.FORMERR, dns.rcode.NOTIMP)
    elif reply is not None and len(reply) > 12:
        assert dns.message.from_wire(reply).to_wire() == theirs(bytes(query))


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
