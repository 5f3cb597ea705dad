"""A TLS hello is read as a server would read it, however it is cut; what can't be read is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.gateway.protocols.refusal import BadMessage
from paddock.gateway.protocols.tls_hello import MAX_HELLO_BYTES, looks_like_tls, read_hello
from tests.gateway.hellos import client_hello, message, records, with_extension

HELLO = client_hello("api.example.com")
ECH, PADDING, SERVER_NAME = 0xFE0D, 0x1234, 0


def test_name_and_protocols_of_a_real_client() -> None:
    hello = read_hello(HELLO)
    assert hello is not None
    assert (hello.server_name, hello.hidden) == ("api.example.com", False)
    assert looks_like_tls(HELLO)


def test_a_hello_without_a_name() -> None:
    hello = read_hello(client_hello(None))
    assert hello is not None
    assert hello.server_name is None


@pytest.mark.parametrize("size", [1, 3, 100, 1024])
def test_records_of_any_size(size: int) -> None:
    hello = read_hello(records(message(HELLO), size))
    assert hello is not None
    assert hello.server_name == "api.example.com"


def test_a_large_hello_is_read_and_a_larger_one_refused() -> None:
    large = with_extension(HELLO, PADDING, bytes(12_000))
    hello = read_hello(large)
    assert hello is not None
    assert hello.server_name == "api.example.com"
    with pytest.raises(BadMessage, match="more than"):
        read_hello(with_extension(HELLO, PADDING, bytes(MAX_HELLO_BYTES)))


def test_an_encrypted_hello_is_seen() -> None:
    hello = read_hello(with_extension(HELLO, ECH, b"\0" * 40))
    assert hello is not None
    assert hello.hidden


def test_every_prefix_needs_more() -> None:
    for end in range(len(HELLO)):
        assert read_hello(HELLO[:end]) is None


def test_two_names_are_refused() -> None:
    with pytest.raises(BadMessage):
        read_hello(with_extension(HELLO, SERVER_NAME, b"\0\x0c\0\0\x09evil.test"))
    two = b"\0\x0a\0\0\x02a.\0\0\x02b."
    with pytest.raises(BadMessage, match="left over"):
        read_hello(with_extension(client_hello(None), SERVER_NAME, two))


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n", b"\x16\x02\0\0\0", b"\x16\x03\x01\0\0", b"\x16\x03\x01\0\x01\x02"]
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadMessage):
        read_hello(data)


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
def test_garbage_is_refused_or_read_but_nothing_else(garbage: bytes, at: int, value: int) -> None:
    changed = bytearray(HELLO)
    changed[at % len(changed)] = value
    for data in (garbage, b"\x16\x03\x01" + garbage, bytes(changed), records(b"\x01" + garbage)):
        try:
            read_hello(data)
        except BadMessage:
            pass
