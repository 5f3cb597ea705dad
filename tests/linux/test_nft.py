"""The rules that lead what leaves a sandbox to the gateway's sockets, in a bare network namespace."""

from __future__ import annotations

import errno
import socket
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.linux import namespaces, netlink, nft, routes
from paddock.supervisor._exits import DNS_PORT, TCP_PORT, rules

from .child import run_in_child

pytestmark = pytest.mark.root
_ORIGINAL = 80  # SO_ORIGINAL_DST, IP6T_SO_ORIGINAL_DST


def enter() -> None:
    namespaces.unshare(namespaces.NEWNET)
    netlink.set_loopback_up()
    nft.load(rules())
    routes.keep_everything(version_6=True)


def original(accepted: socket.socket) -> tuple[str, int]:
    if accepted.family == socket.AF_INET:
        _, port, address = struct.unpack("!HH4s8x", accepted.getsockopt(socket.SOL_IP, _ORIGINAL, 16))
        return socket.inet_ntop(socket.AF_INET, address), port
    _, port, address = struct.unpack("!HH4x16s4x", accepted.getsockopt(socket.IPPROTO_IPV6, _ORIGINAL, 28))
    return socket.inet_ntop(socket.AF_INET6, address), port


def family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def listen(address: str, port: int) -> socket.socket:
    return socket.create_server((address, port), family=family(address))


def datagram(address: str) -> socket.socket:
    made = socket.socket(family(address), socket.SOCK_DGRAM)
    made.settimeout(20)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    return made


@pytest.mark.parametrize(
    ("loopback", "to", "port"),
    [("127.0.0.1", "93.184.216.34", 443), ("127.0.0.1", "10.0.0.1", 15001), ("::1", "2001:db8::5", 22)],
)
def test_a_connection_to_any_address_reaches_the_gateway_which_learns_where_it_was_to_go(
    loopback: str, to: str, port: int
) -> None:
    def body() -> None:
        enter()
        with listen(loopback, TCP_PORT) as gateway, socket.create_connection((to, port), 20) as client:
            accepted, _ = gateway.accept()
            with accepted:
                assert original(accepted) == (to, port)
                accepted.sendall(b"hello")
                assert client.recv(9) == b"hello"
                client.sendall(b"there")
                assert accepted.recv(9) == b"there"

    run_in_child(body)


def test_connections_from_one_port_to_many_addresses_are_told_apart() -> None:
    def body() -> None:
        enter()
        kept: list[socket.socket] = []
        with listen("127.0.0.1", TCP_PORT) as gateway:
            for number in range(1, 6):
                client = socket.socket()
                client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                client.bind(("127.0.0.1", 40000))
                client.settimeout(20)
                client.connect((f"192.0.2.{number}", 80))
                accepted, _ = gateway.accept()
                kept += (client, accepted)
                assert original(accepted) == (f"192.0.2.{number}", 80)
                accepted.sendall(b"%d" % number)
                assert client.recv(9) == b"%d" % number
        for one in kept:
            one.close()

    run_in_child(body)


@pytest.mark.parametrize("resolver", ["8.8.8.8", "127.0.0.53", "127.0.0.1", "2001:4860:4860::8888", "::1"])
def test_a_question_to_any_resolver_is_answered_by_the_gateway_in_its_name(resolver: str) -> None:
    def body() -> None:
        enter()
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as gateway, datagram(resolver) as client:
            gateway.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            gateway.bind(("::", DNS_PORT))
            client.sendto(b"question", (resolver, 53))
            data, sender = gateway.recvfrom(99)
            gateway.sendto(b"answer to " + data, sender)
            answer, address = client.recvfrom(99)
            assert (answer, address[0]) == (b"answer to question", resolver)
            with listen("127.0.0.1" if family(resolver) == socket.AF_INET else "::1", DNS_PORT) as server:
                socket.create_connection((resolver, 53), 20).close()
                server.accept()[0].close()

    run_in_child(body)


@pytest.mark.parametrize(
    ("to", "port"),
    [
        ("8.8.8.8", 443),
        ("2001:db8::1", 443),
        ("224.0.0.251", 5353),
        ("255.255.255.255", 67),
        ("127.0.0.1", DNS_PORT),
        ("::1", DNS_PORT),
    ],
)
def test_every_other_datagram_is_refused_at_once(to: str, port: int) -> None:
    def body() -> None:
        enter()
        with datagram(to) as client, pytest.raises(PermissionError):
            client.sendto(b"x", (to, port))

    run_in_child(body)


def test_icmp_is_refused_at_once() -> None:
    def body() -> None:
        enter()
        with (
            socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw,
            pytest.raises(PermissionError),
        ):
            raw.sendto(b"\x08\0\xf7\xff\0\0\0\0", ("192.0.2.1", 0))

    run_in_child(body)


@pytest.mark.parametrize(("address", "port"), [("127.0.0.1", TCP_PORT), ("::1", TCP_PORT), ("127.0.0.1", DNS_PORT)])
def test_nobody_calls_the_gateway_itself(address: str, port: int) -> None:
    def body() -> None:
        enter()
        with listen(address, port), pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, port), 20)

    run_in_child(body)


def test_programs_inside_speak_with_each_other_and_nothing_of_it_is_tracked() -> None:
    def body() -> None:
        enter()
        for address in ("127.0.0.1", "127.1.2.3", "::1"):
            with listen(address, 8080) as server, socket.create_connection((address, 8080), 20) as client:
                accepted, peer = server.accept()
                with accepted:
                    assert peer[:2] == client.getsockname()[:2]
                    accepted.sendall(b"own")
                    assert client.recv(9) == b"own"
        with datagram("127.0.0.1") as one, datagram("127.0.0.1") as other:
            one.bind(("127.0.0.1", 0))
            other.sendto(b"own", one.getsockname())
            assert one.recv(9) == b"own"
        assert "dport=8080" not in Path("/proc/net/nf_conntrack").read_text()

    run_in_child(body)


def flood(client: socket.socket) -> None:
    for _ in range(100_000):
        client.sendto(b"x", ("192.0.2.1", 53))


def test_questions_that_come_in_floods_are_refused_before_the_kernel_remembers_them() -> None:
    def body() -> None:
        enter()
        with datagram("127.0.0.1") as client:
            client.settimeout(None)  # what the kernel has yet to deliver is room that the next one waits for
            with pytest.raises(PermissionError):
                flood(client)

    run_in_child(body)


def test_without_powers_over_the_namespace_no_rule_is_loaded() -> None:
    def body() -> None:
        namespaces.unshare(namespaces.NEWNET)
        namespaces.unshare(namespaces.NEWUSER)
        with pytest.raises(PermissionError):
            nft.load(rules())
        with pytest.raises(PermissionError):
            routes.keep_everything(version_6=False)

    run_in_child(body)


def test_a_table_that_the_kernel_does_not_take_leaves_nothing() -> None:
    def body() -> None:
        namespaces.unshare(namespaces.NEWNET)
        bad = nft.Chain("a", ((nft.accept(),), (nft.jump("nowhere"),)), "filter", 0)
        with pytest.raises(OSError, match="load packet filter rules") as caught:
            nft.load(nft.batch("paddock", (bad,)))
        assert caught.value.errno == errno.ENOENT
        nft.load(rules())  # the name is free

    run_in_child(body)


@given(st.integers(0, 65535), st.integers(0, 65535))
def test_a_batch_is_a_row_of_whole_messages(one: int, other: int) -> None:
    rule = (nft.destination(one), nft.redirect(other))
    data = nft.batch("t", (nft.Chain("c", (rule, rule), "nat", nft.DESTINATION_NAT),))
    kinds: list[int] = []
    while data:
        length, kind = struct.unpack_from("=IH", data)
        assert length % 4 == 0
        assert length <= len(data)
        kinds.append(kind)
        data = data[length:]
    assert kinds == [16, 0xA00, 0xA03, 0xA06, 0xA06, 17]
