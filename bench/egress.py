"""What the gateway does in a second of its own processor time: requests, new connections, bytes; and its memory.

The client and the server are on the same two cores, so time on the wall says little; a gateway's own time says what one
core would carry.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from socket import create_connection
from typing import Protocol

from bench.egress_h2 import Client2
from bench.egress_parts import NAME, authority, no_delay, trusting
from bench.plan import Plan
from bench.report import Row, Section

CONNECTIONS = 16
REQUESTS = 6000
HANDSHAKES = 400
BYTES = 256 << 20
IDLE = 500
ROUNDS = 3
_CPUCLOCK_SCHED = 2  # linux/posix-timers.h: the clock of a process, by its pid


class Part:
    """A process of `bench.egress_parts`."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "bench.egress_parts", *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def cpu_seconds(self) -> float:
        """Return the processor time so far. Ticks of /proc are too coarse: a short round has none."""
        return time.clock_gettime(~self._process.pid << 3 | _CPUCLOCK_SCHED)

    def rss_mib(self) -> float:
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20

    def close(self) -> None:
        self._process.communicate()


class Measured(Protocol):
    def cpu_seconds(self) -> float: ...


class Client:
    """Speaks to one gateway, or to the server itself."""

    def __init__(self, port: int, server: int, context: ssl.SSLContext) -> None:
        self._port, self._host, self._context = port, f"{NAME}:{server}", context

    def connect(self) -> ssl.SSLSocket:
        sock = no_delay(create_connection(("127.0.0.1", self._port)))
        return self._context.wrap_socket(sock, server_hostname=NAME)

    def get(self, sock: ssl.SSLSocket, path: str) -> int:
        """The bytes of the answer, its head included."""
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n".encode())
        data = sock.recv(1 << 18)
        head, _, body = data.partition(b"\r\n\r\n")
        wanted = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
        got = len(body)
        buffer = bytearray(1 << 18)
        while got < wanted:
            size = sock.recv_into(buffer)
            assert size, "cut short"
            got += size
        return len(head) + 4 + got

    def requests(self, count: int) -> None:
        def work() -> None:
            with self.connect() as sock:
                for _ in range(count // CONNECTIONS):
                    self.get(sock, "/")

        threads = [threading.Thread(target=work) for _ in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def handshakes(self, count: int) -> None:
        for _ in range(count):
            with self.connect() as sock:
                self.get(sock, "/close")

    def download(self, size: int) -> None:
        with self.connect() as sock:
            self.get(sock, f"/bytes/{size}")


@contextmanager
def parts(tier: str) -> Generator[tuple[Part, Client]]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for who in ("public", "inside"):
            authority(directory, who)
        server = Part("server", directory)
        gateway = Part("gateway", directory, tier, server.port)
        try:
            trust = trusting(directory, "public" if tier == "splice" else "inside")
            yield gateway, Client(gateway.port, server.port, trust)
        finally:
            gateway.close()
            server.close()


def streams(rounds: int) -> Generator[Row]:
    """Of a client with HTTP/2, to servers of either kind."""
    for server_speaks, options in (("HTTP/1.1", ()), ("HTTP/2", ("h2",))):
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            for who in ("public", "inside"):
                authority(directory, who)
            server = Part("server", directory, *options)
            gateway = Part("gateway", directory, "inspect", server.port)
            try:
                client = Client2(gateway.port, f"{NAME}:{server.port}", NAME, trusting(directory, "inside"))
                client.requests(64)
                count, size = REQUESTS // 2, BYTES // 2
                label = f"inspect: HTTP/2 to {server_speaks}"
                yield Row(f"{label}: requests", rates(gateway, lambda: client.requests(count), count, rounds))  # noqa: B023 - used at once
                yield Row(f"{label}: MB down", rates(gateway, lambda: client.download(size), size / 1e6, rounds))  # noqa: B023
                client.close()
            finally:
                gateway.close()
                server.close()


def rates(gateway: Measured, work: Callable[[], None], amount: float, rounds: int) -> list[float]:
    """`amount` of something per second of the gateway's processor, in each round."""
    found: list[float] = []
    for _ in range(rounds):
        before = gateway.cpu_seconds()
        work()
        found.append(amount / (gateway.cpu_seconds() - before))
    return found


def measure(plan: Plan) -> Generator[Section]:
    rounds = plan.rounds(ROUNDS)
    section = Section("egress", "what the gateway does in a second of its processor", unit="per second")
    for tier in ("inspect", "splice"):
        with parts(tier) as (gateway, client):
            client.requests(CONNECTIONS * 4)  # the authority's leaf, the trust store
            work = {
                "requests, kept connections": (lambda c=client: c.requests(REQUESTS), float(REQUESTS)),
                "new TLS connections": (lambda c=client: c.handshakes(HANDSHAKES), float(HANDSHAKES)),
                "MB down": (lambda c=client: c.download(BYTES), BYTES / 1e6),
            }
            for what, (do, amount) in work.items():
                section.rows.append(Row(f"{tier}: {what}", rates(gateway, do, amount, rounds)))
            socks = [client.connect() for _ in range(IDLE)]
            for sock in socks:
                client.get(sock, "/")
            section.notes.append(f"{tier}: {gateway.rss_mib():.0f} MiB resident with {IDLE} connections")
            for sock in socks:
                sock.close()
    section.rows += streams(rounds)
    yield section
