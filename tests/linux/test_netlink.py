from __future__ import annotations

import errno
import os
import socket
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.linux import namespaces, netlink, proc

from .child import run_in_child


@pytest.mark.root
def test_lo_of_a_new_network_namespace_comes_up_with_both_addresses() -> None:
    def body() -> None:
        namespaces.unshare(namespaces.NEWNET)
        with pytest.raises(OSError, match="Network is unreachable"):
            socket.create_connection(("127.0.0.1", 9))
        netlink.set_loopback_up()
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname()).close()
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
            socket.create_connection(server.getsockname()[:2]).close()

    run_in_child(body)


@pytest.mark.root
def test_what_netlink_sockets_hold_unread_is_counted_for_their_namespace_alone() -> None:
    def body() -> None:
        outer = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        namespaces.unshare(namespaces.NEWNET)
        assert proc.netlink_bytes(os.getpid()) == 0
        with outer, socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as asking:
            assert proc.netlink_bytes(os.getpid()) == 0
            asking.send(netlink.message(18, 0x301, bytes(16), sequence=1))  # RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP
            assert proc.netlink_bytes(os.getpid()) > 0
        assert proc.netlink_bytes(os.getpid()) == 0

    run_in_child(body)


@pytest.mark.root
def test_the_kernels_refusal_is_an_error_with_words() -> None:
    def body() -> None:
        namespaces.unshare(namespaces.NEWNET)
        missing = netlink.message(16, netlink.ACK, struct.pack("=BxHiII", 0, 0, 4711, 1, 1), sequence=7)
        with pytest.raises(OSError, match="raise link 4711") as caught:
            netlink.send(socket.NETLINK_ROUTE, missing, acknowledgements=1, what="raise link 4711")
        assert caught.value.errno == errno.ENODEV
        assert str(caught.value.filename).endswith("(message 7)")

    run_in_child(body)


acknowledgements = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 133))


@given(st.lists(acknowledgements, max_size=5), st.binary(max_size=20))
def test_acknowledgements_are_read_back_among_other_messages(wanted: list[tuple[int, int]], other: bytes) -> None:
    data = b""
    for sequence, code in wanted:
        data += netlink.message(2, 0, struct.pack("=i", -code) + bytes(16), sequence)
        filler = netlink.message(16, 0, other)
        data += filler + bytes(-len(filler) % 4)
    assert netlink.parse_acknowledgements(data) == wanted


@given(st.binary(max_size=120))
def test_any_bytes_are_messages_or_refused(data: bytes) -> None:
    with suppress(ValueError):
        netlink.parse_acknowledgements(data)


@given(st.integers(0, 0xFFFF), st.binary(max_size=50))
def test_attributes_are_padded_and_hold_their_own_length(kind: int, data: bytes) -> None:
    raw = netlink.attribute(kind, data)
    assert len(raw) % 4 == 0
    assert struct.unpack_from("=HH", raw) == (4 + len(data), kind)
    assert raw[4 : 4 + len(data)] == data
