"""The gateway beside mitmproxy, both ending TLS before the same server, in turns: what each carries in a second of its
own processor time, its memory with connections held, and what it adds to a request when sixteen ask at once.

mitmproxy does less here: it writes no record, judges by no policy, and does not verify the server's certificate.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path

from bench.egress import Client, Part, rates
from bench.egress_parts import authority, trusting
from bench.figures import ratio
from bench.peers.table import MITMPROXY
from bench.plan import Plan
from bench.report import Row, Section

AT_ONCE = 16
REQUESTS, HANDSHAKES, BYTES = 1600, 100, 64 << 20
ASKED = 1600
HELD = 512
ROUNDS = 5


class Mitmproxy:
    """`mitmdump` as a reverse proxy, which keeps and prints nothing and lets large bodies stream."""

    def __init__(self, directory: Path, server: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        options = ("flow_detail=0", f"confdir={directory}", "ssl_insecure=true", "keep_host_header=true")
        options += ("stream_large_bodies=1m", "connection_strategy=lazy", "http2=false")
        command = [str(MITMPROXY), "-q", "--mode", f"reverse:https://127.0.0.1:{server}/"]
        command += ["--listen-host", "127.0.0.1", "--listen-port", str(self.port)]
        command += [part for option in options for part in ("--set", option)]
        environment = {**os.environ, "HOME": str(directory)}
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)
        self._until_it_listens()

    def _until_it_listens(self) -> None:
        while self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
            except ConnectionRefusedError:
                time.sleep(0.05)
            else:
                return
        raise RuntimeError("mitmdump ended before it listened")

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def latencies(client: Client, count: int) -> list[float]:
    """Seconds of each request, of `AT_ONCE` callers with a connection each."""
    found: list[float] = []

    def work() -> None:
        with client.connect() as sock:
            client.get(sock, "/")
            for _ in range(count // AT_ONCE):
                begin = time.perf_counter()
                client.get(sock, "/")
                found.append(time.perf_counter() - begin)

    threads = [threading.Thread(target=work) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def held(proxy: Part | Mitmproxy, client: Client) -> str:
    before = proxy.rss_mib()
    socks = [client.connect() for _ in range(HELD)]
    for sock in socks:
        client.get(sock, "/")
    after = proxy.rss_mib()
    for sock in socks:
        sock.close()
    return f"{after:.0f} MiB resident with {HELD} connections, {(after - before) * 1024 / HELD:.0f} KiB for each"


def measure(plan: Plan) -> Generator[Section]:
    section = Section("proxies", "the gateway and mitmproxy, in a second of their own processor", unit="per second")
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        for who in ("public", "inside"):
            authority(directory, who)
        server = Part("server", directory)
        stack.callback(server.close)
        gateway = Part("gateway", directory, "inspect", server.port)
        stack.callback(gateway.close)
        direct = Client(server.port, server.port, trusting(directory, "public"))
        proxies: dict[str, tuple[Part | Mitmproxy, Client]] = {
            "gateway": (gateway, Client(gateway.port, server.port, trusting(directory, "inside")))
        }
        if MITMPROXY.exists():
            other = Mitmproxy(directory, server.port)
            stack.callback(other.close)
            (directory / "mitmproxy.pem").write_bytes((directory / "mitmproxy-ca-cert.pem").read_bytes())
            proxies["mitmproxy"] = (other, Client(other.port, server.port, trusting(directory, "mitmproxy")))
        else:
            section.notes.append("mitmproxy is not there: make bench-peers")
        _carried(section, proxies, plan.rounds(ROUNDS))
        _added(section, proxies, direct, plan.rounds(ROUNDS))
        section.notes += [f"{name}: {held(proxy, client)}" for name, (proxy, client) in proxies.items()]
    yield section


def _carried(section: Section, proxies: dict[str, tuple[Part | Mitmproxy, Client]], rounds: int) -> None:
    work: dict[str, tuple[Callable[[Client], None], float]] = {
        "requests, kept connections": (lambda client: client.requests(REQUESTS), REQUESTS),
        "new TLS connections": (lambda client: client.handshakes(HANDSHAKES), HANDSHAKES),
        "MB down": (lambda client: client.download(BYTES), BYTES / 1e6),
    }
    for _, client in proxies.values():
        client.requests(AT_ONCE * 4)
    for what, (do, amount) in work.items():
        found: dict[str, list[float]] = {name: [] for name in proxies}
        for turn in range(rounds):
            for name in sorted(proxies, reverse=bool(turn % 2)):
                proxy, client = proxies[name]
                found[name] += rates(proxy, lambda client=client, do=do: do(client), amount, 1)
        section.rows += [Row(f"{name}: {what}", values) for name, values in found.items()]
        if len(found) == 2:
            ours, theirs = ([[value] for value in found[name]] for name in ("gateway", "mitmproxy"))
            section.ratios[f"{what}: gateway / mitmproxy"] = ratio(ours, theirs)


def _added(section: Section, proxies: dict[str, tuple[Part | Mitmproxy, Client]], direct: Client, rounds: int) -> None:
    """Notes: percentiles are of all rounds together, so that each has met the same neighbours."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, client in (("direct", direct), *((name, client) for name, (_, client) in proxies.items())):
            found.setdefault(name, []).extend(latencies(client, ASKED))
    for name, values in found.items():
        cuts = statistics.quantiles([1e3 * value for value in values], n=100)
        section.notes.append(f"{name}, {AT_ONCE} at once: median {cuts[49]:.2f}, p99 {cuts[98]:.2f} ms on the wall")
