"""No other way out: whoever is inside a sandbox with a policy, its root too, reaches what the policy allows and nothing
else. Acceptance test 5 of the policy plane."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
from attacking import REFUSALS, Attacker

from tests.conftest import SandboxFactory, gateway_pid
from tests.orphans import wait_until


class Canary:
    """Servers of the host that note who comes."""

    def __init__(self, addresses: list[str]) -> None:
        self.came: list[tuple[str, bytes]] = []
        self.servers = [self._listen(address) for address in addresses]
        self.ports = {one.getsockname()[0]: one.getsockname()[1] for one in self.servers}
        self.threads = [threading.Thread(target=self._serve, args=(one,)) for one in self.servers]
        for thread in self.threads:
            thread.start()

    def _listen(self, address: str) -> socket.socket:
        return socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)

    def _serve(self, server: socket.socket) -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            with peer:
                peer.settimeout(30)
                try:
                    self.came.append((server.getsockname()[0], peer.recv(4096)))
                    peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello")
                except OSError:
                    continue

    def close(self) -> None:
        for one in self.servers:
            one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self.threads:
            thread.join()


def own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but its loopback's, and so nowhere for a sandbox to go")
        return probe.getsockname()[0]


@pytest.fixture
def canary() -> Generator[Canary]:
    made = Canary(["127.0.0.1", "::1", own_address()])
    yield made
    made.close()


@pytest.fixture(params=["user", "root"])
def fenced(request: pytest.FixtureRequest, sandbox: SandboxFactory, canary: Canary) -> Attacker:
    """Somebody who may talk to one port of the host, and to nobody else."""
    if request.param == "root" and os.getuid() != 0:
        pytest.skip("there is no root inside for an ordinary user")
    policy = {"egress": {"allow": [{"cidr": f"{own_address()}/32", "ports": [canary.ports[own_address()]]}]}}
    return Attacker(sandbox(policy=policy), None if request.param == "user" else "root")


_TCP = """
def tcp(address, port, said=None):
    host = f"[{address}]" if ":" in address else address
    said = said or f"GET / HTTP/1.1\\r\\nhost: {host}:{port}\\r\\nconnection: close\\r\\n\\r\\n".encode()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(60)
        try:
            s.connect((address, port)); s.sendall(said)
            return s.recv(4096).decode("latin-1").split("\\r\\n")[0]
        except OSError as error: return type(error).__name__
"""


def reached(attacker: Attacker, canary: Canary) -> str:
    return attacker.probe(_TCP + f"answer(tcp({own_address()!r}, {canary.ports[own_address()]}))")


def test_what_is_allowed_is_reached_and_nothing_else_by_tcp(fenced: Attacker, canary: Canary) -> None:
    assert reached(fenced, canary) == "HTTP/1.1 200 OK"
    canary.came.clear()
    strangers = ("1.1.1.1", "169.254.169.254", "10.0.0.1", "2606:4700::1111")
    tried = [
        *((address, port) for address in strangers for port in (22, 80)),
        *((own_address(), port) for port in (1, 22, 15001, 15053)),
        *(("::ffff:" + own_address(), port) for port in (1, canary.ports["127.0.0.1"])),
        ("127.0.0.1", canary.ports["127.0.0.1"]),
        ("::1", canary.ports["::1"]),
        ("127.0.0.1", 15001),
        ("127.0.0.1", 15053),
        ("::1", 15001),
    ]  # fmt: skip
    answers = fenced.probe(
        _TCP + "answer([tcp(*target) for target in json.loads(sys.argv[1])])",
        json.dumps(tried),
        timeout_seconds=110,
    )
    wrong = {target: got for target, got in zip(tried, answers, strict=True) if not _refused(got)}
    assert wrong == {}
    assert canary.came == []


def _refused(said: str) -> bool:
    """At once, and in words where HTTP was spoken."""
    return said in ("ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError", "") or said.startswith(
        ("HTTP/1.1 400 ", "HTTP/1.1 403 ", "HTTP/1.1 421 ")
    )


def test_every_other_protocol_is_refused_at_once(fenced: Attacker, canary: Canary) -> None:
    answers = fenced.probe(
        "def send(family, kind, number, to):\n"
        "    with socket.socket(family, kind, number) as s:\n"
        "        s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)\n"
        "        return s.sendto(b'\\x08\\0\\xf7\\xff\\0\\0\\0\\0', to)\n"
        "found = {}\n"
        "for address in ('8.8.8.8', '224.0.0.251', '255.255.255.255', sys.argv[1]):\n"
        "    for to in ((address, 443), (address, 123), (address, 5353), (address, 853)):\n"
        "        found[f'udp {to}'] = attempt(send, socket.AF_INET, socket.SOCK_DGRAM, 0, to)\n"
        "    for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM):\n"
        "        found[f'icmp {kind} {address}'] = attempt(send, socket.AF_INET, kind, 1, (address, 0))\n"
        "    found[f'udplite {address}'] = attempt(send, socket.AF_INET, socket.SOCK_DGRAM, 136, (address, 443))\n"
        "    found[f'sctp {address}'] = attempt(send, socket.AF_INET, socket.SOCK_STREAM, 132, (address, 443))\n"
        "found['quic 6'] = attempt(send, socket.AF_INET6, socket.SOCK_DGRAM, 0, ('2001:db8::1', 443))\n"
        "found['vsock'] = attempt(socket.socket, 40, socket.SOCK_STREAM)\n"
        "found['packet'] = attempt(socket.socket, socket.AF_PACKET, socket.SOCK_RAW)\n"
        "found['uring'] = call(425, 8, 0)\n"
        "answer({k: str(v) for k, v in found.items()})",
        own_address(),
    )
    assert {what: got for what, got in answers.items() if got not in REFUSALS} == {}
    assert canary.came == []


def test_nobody_inside_changes_rules_routes_or_namespaces(fenced: Attacker, canary: Canary) -> None:
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
    assert reached(fenced, canary) == "HTTP/1.1 200 OK"


def test_the_gateway_as_a_proxy_goes_nowhere_else(fenced: Attacker, canary: Canary) -> None:
    port = canary.ports["127.0.0.1"]
    lines = [
        f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n",
        "CONNECT 169.254.169.254:80 HTTP/1.1\r\nhost: 169.254.169.254\r\n\r\n",
        "CONNECT 198.18.0.1:3128 HTTP/1.1\r\nhost: 198.18.0.1:3128\r\n\r\n",
        f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n",
        f"GET http://localhost:{port}/ HTTP/1.1\r\nhost: localhost:{port}\r\n\r\n",
        f"GET http://[::1]:{canary.ports['::1']}/ HTTP/1.1\r\nhost: [::1]:{canary.ports['::1']}\r\n\r\n",
    ]
    answers = fenced.probe(
        _TCP + "answer([tcp('198.18.0.1', 3128, line.encode()) for line in json.loads(sys.argv[1])])", json.dumps(lines)
    )
    assert [got for got in answers if not _refused(got)] == []
    assert canary.came == []


def test_with_the_gateway_killed_nothing_passes_and_soon_what_is_allowed_does_again(
    fenced: Attacker, canary: Canary, shared_state: Path
) -> None:
    assert reached(fenced, canary) == "HTTP/1.1 200 OK"
    first = gateway_pid(shared_state)
    assert first is not None
    os.kill(first, signal.SIGSTOP)  # nobody's process any more, whatever it has open
    canary.came.clear()
    with fenced.sandbox.start(("python3", "-c", _inside(canary)), user=fenced.user) as calling:
        os.kill(first, signal.SIGKILL)
        assert wait_until(lambda: gateway_pid(shared_state) not in (None, first))
        assert calling.wait().exit_code == 0
    assert all(where == own_address() for where, _ in canary.came)
    assert reached(fenced, canary) == "HTTP/1.1 200 OK"
    assert fenced.probe(_TCP + "answer(tcp('1.1.1.1', 80))").startswith("HTTP/1.1 403 ")


def _inside(canary: Canary) -> str:
    target = f"({own_address()!r}, {canary.ports[own_address()]})"
    return (
        "import socket\n"
        "def call():\n"
        f"    with socket.create_connection({target}, 60) as s:\n"
        f"        s.sendall(b'GET / HTTP/1.1\\r\\nhost: {own_address()}:{canary.ports[own_address()]}\\r\\n\\r\\n')\n"
        "        return s.recv(99)\n"
        "for _ in range(50):\n"
        "    try:\n"
        "        if call().startswith(b'HTTP/1.1 200'): break\n"
        "    except OSError: pass\n"
        "else: raise SystemExit('it did not come back')\n"
    )
