"""Attempts to reach anything but the own loopback."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

from attacking import REFUSALS, Attacker

from paddock import Sandbox

UNREACHED = {"ENETUNREACH", "EHOSTUNREACH", "EACCES", "EPERM", "EADDRNOTAVAIL"}
ADDRESSES = [
    "1.1.1.1", "8.8.8.8", "169.254.169.254", "100.100.100.200", "168.63.129.16", "10.0.0.1", "172.17.0.1",
    "192.168.0.1",    "192.0.2.1", "224.0.0.251", "255.255.255.255",
]  # fmt: skip
ADDRESSES_6 = [
    "2606:4700:4700::1111",
    "fd00:ec2::254",
    "fe80::1%lo",
    "::ffff:169.254.169.254",
    "64:ff9b::1.1.1.1",
    "ff02::1",
]


def test_there_is_a_loopback_and_nothing_else(attacker: Attacker) -> None:
    names = attacker.probe("answer([n for _, n in socket.if_nameindex()])")
    assert names == ["lo"]
    assert attacker.sh("cat /proc/net/route").stdout.splitlines()[1:] == []


def test_no_address_is_reached_by_tcp_or_udp(attacker: Attacker) -> None:
    answers = attacker.probe(
        "def tcp(family, address):\n"
        "    with socket.socket(family, socket.SOCK_STREAM) as s:\n"
        "        s.settimeout(5)\n"
        "        try: s.connect(address)\n"
        "        except TimeoutError: return 'unanswered'\n"
        "def udp(family, address):\n"
        "    with socket.socket(family, socket.SOCK_DGRAM) as s: s.sendto(b'x', address)\n"
        "found = {}\n"
        "v4, v6 = json.loads(sys.argv[1])\n"
        "for port in (53, 80, 443):\n"
        "    for a in v4: found[f'{a} {port}'] = [attempt(f, socket.AF_INET, (a, port)) for f in (tcp, udp)]\n"
        "    for a in v6: found[f'{a} {port}'] = [attempt(f, socket.AF_INET6, (a.partition('%')[0], port, 0, 1 "
        "if '%' in a else 0)) for f in (tcp, udp)]\n"
        "answer(found)",
        _json([ADDRESSES, ADDRESSES_6]),
    )
    refused = UNREACHED | {"EINVAL", "ECONNREFUSED"}
    reached = {
        where: got
        for where, got in answers.items()
        if not set(got) <= refused
        # gVisor's network looks for a neighbour on its loopback, and drops what it holds for it.
        and not ("%lo" in where and got == ["unanswered", "allowed"])
    }
    assert reached == {}


def test_the_loopback_works(attacker: Attacker) -> None:
    answer = attacker.probe(
        "found = []\n"
        "for family, address in ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')):\n"
        "    with socket.create_server((address, 0), family=family) as server:\n"
        "        with socket.create_connection(server.getsockname()[:2]) as client:\n"
        "            peer, _ = server.accept(); client.sendall(b'hello'); found.append(peer.recv(9).decode()); "
        "peer.close()\n"
        "answer(found)"
    )
    assert answer == ["hello", "hello"]


def test_a_server_of_the_host_is_not_reached(attacker: Attacker, tmp_path: Path) -> None:
    name = f"paddock-canary-{secrets.token_hex(6)}"
    path = f"/tmp/{name}"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.create_server(("0.0.0.0", 0)) as everywhere,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as six,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX) as pathname,
    ):
        abstract.bind("\0" + name)
        pathname.bind(path)
        servers = [tcp, everywhere, six, abstract, pathname]
        try:
            for server in servers[3:]:
                server.listen()
            answers = attacker.probe(
                "def unix(address):\n"
                "    with socket.socket(socket.AF_UNIX) as s: s.connect(address)\n"
                "ports, canary = json.loads(sys.argv[1]), sys.argv[2]\n"
                "found = [attempt(lambda: socket.create_connection((h, p), 5).close()) for p in ports for h in "
                "('127.0.0.1', '::1', '0.0.0.0')]\n"
                "found += [attempt(unix, '\\0' + canary), attempt(unix, '/tmp/' + canary)]\n"
                "answer(found)",
                _json([server.getsockname()[1] for server in servers[:3]]),
                name,
            )
        finally:
            os.unlink(path)
        assert set(answers) <= UNREACHED | {"ECONNREFUSED", "ENOENT"}
        for server in servers:
            server.setblocking(False)
            try:
                connection, _ = server.accept()
            except BlockingIOError:
                continue
            connection.close()
            raise AssertionError(f"a connection from inside arrived at {server.getsockname()!r}")


def test_the_network_cannot_be_changed(attacker: Attacker) -> None:
    answers = attacker.probe(
        "import fcntl\n"
        "def netlink(kind, body):\n"
        "    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:\n"
        "        s.send(struct.pack('IHHII', 16 + len(body), kind, 0x605, 1, 0) + body)\n"
        "        code = struct.unpack_from('i', s.recv(4096), 16)[0]\n"
        "        if code: raise OSError(-code, '')\n"
        "link = struct.pack('BxHiII', 0, 0, 0, 1, 1)\n"
        "veth = struct.pack('HH', 12, 1) + b'veth\\0\\0\\0\\0'\n"
        "info = struct.pack('HH', 4 + len(veth), 18) + veth\n"
        "address = struct.pack('BBBBi', 2, 24, 0, 0, 1) + struct.pack('HH', 8, 2) + bytes([10, 9, 8, 7])\n"
        "route = struct.pack('BBBBBBBBI', 2, 0, 0, 0, 254, 3, 253, 1, 0) + struct.pack('HHi', 8, 4, 1)\n"
        "def ioctl(number, request):\n"
        "    with socket.socket() as s: fcntl.ioctl(s, number, request)\n"
        "answer([attempt(netlink, 16, link + info), attempt(netlink, 20, address), attempt(netlink, 24, route),\n"
        "        attempt(netlink, 16, struct.pack('BxHiII', 0, 0, 1, 0, 1)), attempt(ioctl, 0x8914, "
        "struct.pack('16sH14x', b'lo', 0)),\n"
        "        attempt(ioctl, 0x8916, struct.pack('16sHH4s8x', b'lo', 2, 0, bytes([10, 9, 8, 7])))])"
    )
    assert set(answers) <= REFUSALS
    assert attacker.probe("answer([n for _, n in socket.if_nameindex()])") == ["lo"]


def test_a_neighbour_is_not_reached(attacker: Attacker, bystander: Sandbox) -> None:
    name = f"paddock-neighbour-{secrets.token_hex(6)}"
    server = (
        "import socket, sys\n"
        "tcp = socket.create_server(('0.0.0.0', 0)); abstract = socket.socket(socket.AF_UNIX); "
        "abstract.bind('\\0' + sys.argv[1])\n"
        "abstract.listen(); print(tcp.getsockname()[1], flush=True)\n"
        "tcp.settimeout(0.01); abstract.settimeout(0.01); input()\n"
        "for one in (tcp, abstract):\n"
        "    try: one.accept(); print('reached')\n"
        "    except TimeoutError: pass\n"
    )
    with bystander.start(("python3", "-I", "-S", "-c", server, name), stdin=True) as process:
        port = process.stdout.read(100).decode().strip()
        answers = attacker.probe(
            "def unix(address):\n"
            "    with socket.socket(socket.AF_UNIX) as s: s.connect(address)\n"
            "answer([attempt(lambda: socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5).close()), "
            "attempt(unix, '\\0' + sys.argv[2])])",
            port,
            name,
        )
        process.stdin.write(b"\n")
        assert process.stdout.read() == b""
    assert answers == ["ECONNREFUSED", "ECONNREFUSED"]


def test_names_are_not_resolved(attacker: Attacker) -> None:
    answer = attacker.probe(
        "def look(host):\n"
        "    try: return [a[4][0] for a in socket.getaddrinfo(host, 80)]\n"
        "    except OSError as error: return 'none'\n"
        "answer([look('example.com'), look('metadata.google.internal'), look('host.docker.internal')])"
    )
    assert answer == ["none", "none", "none"]


def test_the_name_of_the_machine_is_not_the_hosts_and_cannot_be_changed(attacker: Attacker) -> None:
    before = socket.gethostname()
    name = attacker.probe("answer(os.uname().nodename)")
    assert name != before
    assert attacker.sh("hostname evil || sh -c 'echo evil >/proc/sys/kernel/hostname'").exit_code != 0
    assert attacker.probe("answer(os.uname().nodename)") == name
    assert socket.gethostname() == before


def test_shared_memory_and_queues_of_the_host_are_not_seen(attacker: Attacker, create: Callable[..., Sandbox]) -> None:
    assert attacker.sh("cat /proc/sysvipc/shm /proc/sysvipc/sem /proc/sysvipc/msg | grep -v key").stdout == ""
    other = Attacker(create(), attacker.user)
    made = attacker.probe("answer(libc.shmget(4242, 4096, 0o1666))")
    assert made >= 0
    assert other.probe("answer(libc.shmget(4242, 4096, 0o666))") == -1


def _json(value: object) -> str:
    import json

    return json.dumps(value)
