"""A host has one spelling; what a resolver would take for an address though it does not look like one is refused."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.gateway.protocols.names import authority, canonical
from paddock.gateway.protocols.refusal import BadMessage


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("example.com", "example.com"),
        ("API.Example.COM.", "api.example.com"),
        ("xn--mnchen-3ya.de", "xn--mnchen-3ya.de"),
        ("localhost", "localhost"),
        ("192.0.2.1", "192.0.2.1"),
        ("2001:DB8:0::1", "2001:db8::1"),
    ],
)
def test_one_spelling(written: str, meant: str) -> None:
    assert canonical(written) == meant
    assert canonical(meant) == meant


@pytest.mark.parametrize(
    "host",
    [
        *("2130706433", "0x7f.1", "0x7f000001", "017700000001", "127.1", "127.0.0.1.", "①②⑦.0.0.1", "\uff11.2.3.4"),
        *("", ".", "a..b", "..", "-a.com", "a-.com", "a_b.com", "a b", "a\\b.com", "a@b.com", "a%00.com", "münchen.de"),
        *("1.2.3.04", "fe80::1%eth0", "[::1]", "a" * 64 + ".com", "a." * 130 + "com", "a.com..", "a\u2024b.com", "a/b"),
    ],
)
def test_other_spellings_are_refused(host: str) -> None:
    with pytest.raises(BadMessage):
        canonical(host)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("Example.com", ("example.com", 443)),
        ("example.com:8443", ("example.com", 8443)),
        ("[2001:db8::1]:80", ("2001:db8::1", 80)),
        ("192.0.2.1:1", ("192.0.2.1", 1)),
    ],
)
def test_hosts_with_ports(written: str, meant: tuple[str, int]) -> None:
    assert authority(written, 443) == meant


@pytest.mark.parametrize(
    "text", ["", ":80", "a:", "a:0", "a:65536", "a:b", "u@a", "2001:db8::1", "[a]", "a:1:2", "a/", "a:\uff180"]
)
def test_malformed_authorities(text: str) -> None:
    with pytest.raises(BadMessage):
        authority(text, 443)


@given(st.text(max_size=40))
def test_whatever_is_taken_is_a_name_or_an_address_for_everybody(text: str) -> None:
    try:
        host = canonical(text)
    except BadMessage:
        return
    assert canonical(host) == host
    try:
        ipaddress.ip_address(host)
    except ValueError:
        assert all(letter in "abcdefghijklmnopqrstuvwxyz0123456789-." for letter in host)
        assert not host.rpartition(".")[2].isdigit()
