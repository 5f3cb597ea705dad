"""The processes of `bench.egress`: a server, and a gateway in front of it. Each prints its port and runs until its
standard input ends.

    python -m bench.egress_parts server DIRECTORY [h2]
    python -m bench.egress_parts gateway DIRECTORY TIER PORT
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
from pathlib import Path

from bench.egress_h2 import Answers2
from paddock.audit import AuditLog
from paddock.gateway.authority import Authority
from paddock.gateway.proxy.network import Limits
from paddock.model.egress import Tier
from tests.gateway.rig import Policy, Rig

NAME = "a.test"
BODY = b"x" * 1024
PIECE = bytes(1 << 18)


class Answers(asyncio.Protocol):
    """A small answer, or as many bytes as the path says: `/bytes/N`."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._left = 0
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        path = data.split(b" ", 2)[1]
        if path.startswith(b"/bytes/"):
            self._left = int(path[7:])
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % self._left)
            self._more()
            return
        close = b"Connection: close\r\n" if path == b"/close" else b""
        answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n%b\r\n%b"
        self.transport.write(answer % (len(BODY), close, BODY))
        if close:
            self.transport.close()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._more()

    def _more(self) -> None:
        while self._left and not self._paused:
            self.transport.write(PIECE[: self._left])
            self._left -= min(self._left, len(PIECE))


def authority(directory: Path, name: str) -> Authority:
    """The same one in every process."""
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    if not key.exists():
        made = Authority.make(name)
        certificate.write_bytes(made.certificate)
        key.write_bytes(made.key)
    return Authority(certificate.read_bytes(), key.read_bytes())


async def serve(directory: Path, *, h2: bool) -> None:
    context = authority(directory, "public").context(NAME, h2=h2)
    context.set_alpn_protocols(["h2" if h2 else "http/1.1"])  # of both, the authority's context takes HTTP/1.1
    protocol = Answers2 if h2 else Answers
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0, ssl=context, backlog=600)
    await until_the_end(server.sockets[0].getsockname()[1])


async def gate(directory: Path, tier: Tier, port: int) -> None:
    rig = Rig(Policy({NAME: tier}))
    rig.names = {NAME: ["127.0.0.1"]}
    rig.inside, rig.public = authority(directory, "inside"), authority(directory, "public")
    rig.limits = Limits(connections=2048)
    rig.gateway = gateway = rig.make_gateway()
    network = rig.network()
    network.audit_log = AuditLog(directory / f"audit-{os.getpid()}")
    await gateway.open(network)
    rig.aim(NAME, port)
    await until_the_end(rig.port)
    await gateway.close_all()


async def until_the_end(port: int) -> None:
    print(port, flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


def trusting(directory: Path, name: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=directory / f"{name}.pem")


def no_delay(sock: socket.socket) -> socket.socket:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def main(arguments: list[str]) -> None:
    what, directory, *rest = arguments
    work = (
        serve(Path(directory), h2=bool(rest))
        if what == "server"
        else gate(Path(directory), Tier(rest[0]), int(rest[1]))
    )
    asyncio.run(work)


if __name__ == "__main__":
    main(sys.argv[1:])
