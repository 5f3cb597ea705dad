"""No other way out: whoever is inside a sandbox with a policy, its root too, reaches what the policy allows and nothing
else; and is told so at once, which is why nothing here waits for less than a minute."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.conftest import SandboxFactory, gateway_pid
from tests.orphans import wait_until
from tests.security.attacking import REFUSALS, Attacker

from .inside import TALK, refused
from .rig import ADDRESS, Internet, Records
from .world import OWN_ADDRESS

POLICY = {"egress": {"allow": [{"host": "good.test", "ports": [80]}, {"cidr": f"{ADDRESS}/32", "ports": [8080]}]}}


class Neighbour:
    """A server on the host's own loopback, which notes who comes."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.address, self.came = address, 0
        self._server = socket.create_server((address, 0), family=family)
        self.port = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._server.accept()[0].close()
                self.came += 1

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()


@pytest.fixture
def neighbours(internet: Internet) -> Generator[list[Neighbour]]:
    made = [Neighbour("127.0.0.1"), Neighbour("::1")]
    yield made
    for one in made:
        one.close()
    assert [one.came for one in made] == [0, 0]
    assert internet.strays() == []


@pytest.fixture
def fenced(sandbox: SandboxFactory, internet: Internet, neighbours: list[Neighbour], who: str | None) -> Attacker:
    """Somebody who may talk to one name and to one port of one address."""
    internet.site("good.test")
    return Attacker(sandbox(policy=POLICY), who)


def assert_twin(fenced: Attacker) -> None:
    said = fenced.probe(
        TALK
        + f"answer([exchange('good.test', 80, get('good.test')), exchange({ADDRESS!r}, 8080, get('{ADDRESS}:8080'))])"
    )
    assert [one[:12] for one in said] == ["HTTP/1.1 200", "HTTP/1.1 200"], said


def test_what_is_allowed_is_reached_and_nothing_else_by_tcp(
    fenced: Attacker, neighbours: list[Neighbour], records: Records
) -> None:
    strangers = ("1.1.1.1", "169.254.169.254", "10.0.0.1", "2606:4700::1111", OWN_ADDRESS, f"::ffff:{ADDRESS}")
    tried = [
        *((address, port) for address in strangers for port in (22, 80, 443, 8443)),
        *((ADDRESS, port) for port in (1, 22, 80, 443, 15001, 15053)),
        *((one.address, one.port) for one in neighbours),
        *((f"::ffff:{one.address}", one.port) for one in neighbours[:1]),
        *(("127.0.0.1", port) for port in (15001, 15053)),
        ("::1", 15001),
    ]
    code = "answer([exchange(to, port, get('good.test')) for to, port in json.loads(sys.argv[1])])"
    answers = fenced.probe(TALK + code, json.dumps(tried), timeout_seconds=110)
    assert {to: said for to, said in zip(tried, answers, strict=True) if not refused(said)} == {}
    written = records.denied(fenced.sandbox.id, "egress.connect")
    assert {(one.detail["host"], one.detail["port"]) for one in written} >= {("1.1.1.1", 22), (ADDRESS, 443)}
    assert {one.detail["revision"] for one in written} == {fenced.sandbox.policy}
    assert_twin(fenced)


def test_every_other_protocol_is_refused_at_once(fenced: Attacker) -> None:
    answers = fenced.probe(
        "def send(family, kind, number, to):\n"
        "    with socket.socket(family, kind, number) as s:\n"
        "        s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)\n"
        "        return s.sendto(b'\\x08\\0\\xf7\\xff\\0\\0\\0\\0\\0', to)\n"
        "found = {}\n"
        "for address in ('8.8.8.8', '224.0.0.251', '255.255.255.255', *sys.argv[1:]):\n"
        "    for to in ((address, 443), (address, 123), (address, 5353), (address, 853)):\n"
        "        found[f'udp {to}'] = attempt(send, socket.AF_INET, socket.SOCK_DGRAM, 0, to)\n"
        "    for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM):\n"
        "        found[f'icmp {kind} {address}'] = attempt(send, socket.AF_INET, kind, 1, (address, 0))\n"
        "    found[f'udplite {address}'] = attempt(send, socket.AF_INET, socket.SOCK_DGRAM, 136, (address, 443))\n"
        "    for number in (132, 33, 262):\n"
        "        to = (address, 443)\n"
        "        found[f'{number} {address}'] = attempt(send, socket.AF_INET, socket.SOCK_STREAM, number, to)\n"
        "for address in ('2001:db8::1', 'ff02::1'):\n"
        "    found[f'quic {address}'] = attempt(send, socket.AF_INET6, socket.SOCK_DGRAM, 0, (address, 443))\n"
        "    found[f'icmp {address}'] = attempt(send, socket.AF_INET6, socket.SOCK_RAW, 58, (address, 0))\n"
        "for family in (40, 17, 31, 30, 44, 21):  # vsock, packet, bluetooth, tipc, xdp, rds\n"
        "    for kind in (socket.SOCK_STREAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):\n"
        "        found[f'{family} {kind}'] = attempt(socket.socket, family, kind)\n"
        "found['uring'] = call(425, 8, 0)\n"
        "answer({k: str(v) for k, v in found.items()})",
        ADDRESS,
        OWN_ADDRESS,
    )
    assert {what: got for what, got in answers.items() if got not in REFUSALS} == {}
    assert_twin(fenced)


def test_nobody_inside_changes_rules_routes_or_namespaces(fenced: Attacker) -> None:
    answers = fenced.probe(
        "def netlink(family, kind, body):\n"
        "    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family) as s:\n"
        "        begin = struct.pack('=IHHIIBBH', 20, 16, 1, 0, 0, 0, 0, 2560) if family == 12 else b''\n"
        "        end = struct.pack('=IHHIIBBH', 20, 17, 1, 2, 0, 0, 0, 2560) if family == 12 else b''\n"
        "        s.settimeout(60)\n"
        "        s.send(begin + struct.pack('=IHHII', 16 + len(body), kind, 5, 1, 0) + body + end)\n"
        "        number = -struct.unpack_from('=i', s.recv(4096), 16)[0]\n"
        "        return name(number) if number else 'allowed'\n"
        "found = [attempt(netlink, 12, 10 << 8 | 2, struct.pack('=BBH', 1, 0, 0)),\n"
        "         attempt(netlink, 0, 25, struct.pack('=8BI', 2, 0, 0, 0, 255, 3, 254, 2, 0)),\n"
        "         attempt(netlink, 0, 16, struct.pack('=BxHiII', 0, 0, 1, 0, 1)),\n"
        "         call(272, 0x10000000 | 0x40000000), call(272, 0x40000000)]\n"
        "answer(found)"
    )
    assert set(answers) <= REFUSALS
    assert_twin(fenced)


def test_the_gateway_as_a_proxy_goes_nowhere_else(fenced: Attacker, neighbours: list[Neighbour]) -> None:
    four, six = neighbours
    urls = [f"127.0.0.1:{four.port}", f"localhost:{four.port}", f"[::1]:{six.port}", f"[::ffff:127.0.0.1]:{four.port}"]
    urls += ["169.254.169.254:80", "198.18.0.1:3128", f"{ADDRESS}:80", f"{OWN_ADDRESS}:80", "evil.test:443"]
    code = (
        "hosts = json.loads(sys.argv[1])\n"
        "answer([[exchange('198.18.0.1', 3128, get(host), proxy=host) for host in hosts],"
        " [exchange('198.18.0.1', 3128, get(host, f'http://{host}/')) for host in hosts]])"
    )
    for answers in fenced.probe(TALK + code, json.dumps(urls), timeout_seconds=110):
        assert {host: said for host, said in zip(urls, answers, strict=True) if not refused(said)} == {}
    assert_twin(fenced)


RELAY = r"""
import os, threading
relay = socket.create_server(("127.0.0.1", 0))
hidden = socket.socket(socket.AF_UNIX)
hidden.bind("\0relay"); hidden.listen()
def serve(listener, upstream):
    while True:
        call, _ = listener.accept()
        threading.Thread(target=pump, args=(call, upstream), daemon=True).start()
def pump(call, upstream):
    with call:
        call.settimeout(60)
        asked = call.recv(65536)
        try:
            with socket.create_connection(upstream, 60) as out:
                out.sendall(asked); call.sendall(end_of(out.recv).encode("latin-1"))
        except OSError as error: call.sendall(type(error).__name__.encode())
for upstream, listener in ((("198.18.0.1", 3128), relay), (("1.1.1.1", 80), hidden)):
    threading.Thread(target=serve, args=(listener, upstream), daemon=True).start()
to = relay.getsockname()
with socket.socket(socket.AF_UNIX) as s:
    s.connect("\0relay"); s.sendall(get("1.1.1.1").encode()); by_unix = end_of(s.recv)
answer({
    "CONNECT": exchange(*to, "CONNECT evil.test:80 HTTP/1.1\r\nhost: evil.test:80\r\nconnection: close\r\n\r\n"),
    "of the relay": exchange(*to, f"CONNECT 127.0.0.1:{to[1]} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"),
    "absolute": exchange(*to, get("evil.test", "http://evil.test/")),
    "by an abstract socket": by_unix,
    "twin": exchange(*to, get("good.test", "http://good.test/")),
})
"""


def test_a_relay_inside_goes_where_its_maker_may_and_nowhere_else(fenced: Attacker) -> None:
    told = fenced.probe(TALK + RELAY)
    assert told.pop("twin").startswith("HTTP/1.1 200 ")
    assert {way: said for way, said in told.items() if not refused(said)} == {}


def test_another_sandbox_is_no_way_out(fenced: Attacker, sandbox: SandboxFactory) -> None:
    """Neither an address nor an abstract socket of one is in the other."""
    other = Attacker(sandbox(level=fenced.sandbox.level, policy=POLICY), fenced.user)
    listen = (
        "import socket, sys\n"
        "one, two = socket.create_server(('127.0.0.1', 4321)), socket.socket(socket.AF_UNIX)\n"
        "two.bind('\\0meeting'); two.listen(); print('up', flush=True); sys.stdin.read()\n"
    )
    code = (
        "def meet():\n"
        "    with socket.socket(socket.AF_UNIX) as s: s.connect('\\0meeting')\n"
        "answer([exchange('127.0.0.1', 4321, 'x'), attempt(meet)])"
    )
    with other.sandbox.start(("python3", "-c", listen), stdin=True, user=other.user) as process:
        process.stdout.read(100)
        assert fenced.probe(TALK + code) == ["ConnectionRefusedError", "ECONNREFUSED"]


def test_with_the_gateway_killed_nothing_passes_and_soon_what_is_allowed_does_again(
    fenced: Attacker, internet: Internet, shared_state: Path
) -> None:
    assert_twin(fenced)
    first = gateway_pid(shared_state)
    assert first is not None
    os.kill(first, signal.SIGSTOP)  # nobody's process any more, whatever it has open
    with fenced.sandbox.start(("python3", "-c", TALK + _UNTIL), user=fenced.user) as calling:
        os.kill(first, signal.SIGKILL)
        assert wait_until(lambda: gateway_pid(shared_state) not in (None, first), seconds=60)
        assert calling.wait().exit_code == 0
    assert {(arrival.address, arrival.port) for arrival in internet.arrivals} == {(ADDRESS, 80), (ADDRESS, 8080)}
    assert_twin(fenced)
    assert fenced.probe(TALK + "answer(exchange('1.1.1.1', 80, get('1.1.1.1')))").startswith("HTTP/1.1 403 ")


_UNTIL = """
for _ in range(50):
    if exchange("good.test", 80, get("good.test")).startswith("HTTP/1.1 200 "): break
else: raise SystemExit("it did not come back")
"""
