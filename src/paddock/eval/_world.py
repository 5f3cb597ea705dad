"""A simulated outside network, with one thread per connection.

Every name has an address, every address answers, and the thread keeps the data that arrives. The gateway's end is
`paddock.gateway.evaluation_network`.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import socket
import socketserver
import ssl
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from paddock.gateway.authority import Authority
from paddock.supervisor import layout

REPOSITORY = b"acme/app"
OBJECT = b"1" * 40
_NOTHING = b"0" * 40


class HttpDialogue(BaseHTTPRequestHandler):
    """The HTTP server of one connection, in the role of `host`."""

    protocol_version = "HTTP/1.1"

    def __init__(self, sock: socket.socket, reader: io.BufferedReader, host: str) -> None:
        self._reader, self.host = reader, host
        super().__init__(sock, ("world", 0), None)  # pyright: ignore[reportArgumentType] - without a server

    def setup(self) -> None:
        self.connection = self.request
        self.rfile, self.wfile = self._reader, self.connection.makefile("wb", 0)

    def do_GET(self) -> None:
        body = self._body()
        kind, answer = site(self.host, self.path, body)
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_GET

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        parts: list[bytes] = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def log_message(self, format: str, *args: object) -> None: ...


def site(host: str, target: str, body: bytes) -> tuple[str, bytes]:
    """Return the kind of an answer, and the answer."""
    parts = urlsplit(target)
    for service in ("git-upload-pack", "git-receive-pack"):
        if parts.path.endswith("/info/refs") and parts.query == f"service={service}":
            return f"application/x-{service}-advertisement", _advertisement(service.encode())
    if parts.path.endswith("/git-receive-pack"):
        return "application/x-git-receive-pack-result", _pushed(body)
    if host == "api.github.com":
        return "application/json", json.dumps({"full_name": "acme/app", "private": True}).encode()
    return "text/plain", b"ok\n"


def packet(line: bytes) -> bytes:
    return b"%04x%b" % (len(line) + 4, line)


def _advertisement(service: bytes) -> bytes:
    first = packet(b"# service=" + service + b"\n") + b"0000"
    if service == b"git-receive-pack":
        return first + packet(_NOTHING + b" capabilities^{}\0report-status ofs-delta\n") + b"0000"
    return first + packet(OBJECT + b" HEAD\0ofs-delta\n") + packet(OBJECT + b" refs/heads/main\n") + b"0000"


def _pushed(body: bytes) -> bytes:
    """Yes to each ref."""
    refs: list[bytes] = []
    at = 0
    while at + 4 <= len(body) and (size := int(body[at : at + 4], 16)):
        command = body[at + 4 : at + size].partition(b"\0")[0].split()
        refs.append(command[2])
        at += size
    return packet(b"unpack ok\n") + b"".join(packet(b"ok " + ref + b"\n") for ref in refs) + b"0000"


MOST_BYTES = 1 << 20
"""Bytes of one connection that the evaluation keeps."""
_PATIENCE_SECONDS = 30.0
_TLS = 0x16
_FIRST = (100 << 24) + (128 << 16)
"""100.128.0.0/9: public, so that a policy judges it normally, and never a real destination."""


class ConnectionData(msgspec.Struct, kw_only=True):
    """The data of one connection to a simulated server. `host` is the name for the address, or the address itself."""

    host: str
    port: int
    tls: bool = False
    data: bytes = b""
    length: int = 0


class ConnectionsSince(msgspec.Struct, frozen=True):
    """The connections since a moment, and the names of outside lookups."""

    arrivals: tuple[ConnectionData, ...]
    names: tuple[str, ...]


class World(socketserver.ThreadingUnixStreamServer):
    """Serves a state directory in a `with` block. One at a time, which is the caller's to see to."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, state: Path) -> None:
        self._path = state / layout.WORLD_SOCKET
        self._authority = _authority(state)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._names: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        self._arrivals: list[ConnectionData] = []
        self._asked: list[str] = []

        self._path.unlink(missing_ok=True)
        directory = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            super().__init__(f"/proc/self/fd/{directory}/{self._path.name}", RequestHandler)
        finally:
            os.close(directory)

    def __enter__(self) -> World:
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="world", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        """Close the world. The certificate stays: a gateway that lives on, or comes, knows this world and reaches
        nothing in it."""
        self.shutdown()
        self._thread.join()
        self.server_close()
        self._path.unlink(missing_ok=True)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a broken connection, because the gateway breaks them."""

    def mark(self) -> tuple[int, int]:
        with self._lock:
            return len(self._arrivals), len(self._asked)

    def since(self, mark: tuple[int, int]) -> ConnectionsSince:
        with self._lock:
            return ConnectionsSince(tuple(self._arrivals[mark[0] :]), tuple(self._asked[mark[1] :]))

    def address(self, name: str) -> str:
        with self._lock:
            self._asked.append(name)
            if name not in self._addresses:
                address = socket.inet_ntoa((_FIRST + next(self._numbers)).to_bytes(4))
                self._addresses[name], self._names[address] = address, name
            return self._addresses[name]

    def answer(self, sock: socket.socket, address: str, port: int) -> None:
        with self._lock:
            arrival = ConnectionData(host=self._names.get(address, address), port=port)
            self._arrivals.append(arrival)
        first = sock.recv(1, socket.MSG_PEEK)
        if first and first[0] == _TLS:
            arrival.tls = True
            sock = self._tls(sock, arrival.host)
        with contextlib.closing(sock):
            HttpDialogue(sock, io.BufferedReader(RecordingStream(sock, arrival, self._lock)), arrival.host)

    def _tls(self, sock: socket.socket, host: str) -> ssl.SSLSocket:
        """Answer the TLS handshake with a certificate for the requested name."""

        def choose(one: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
            one.context = self._authority.context(name or host)

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sni_callback = choose  # pyright: ignore[reportAttributeAccessIssue] - typeshed knows no union here
        return context.wrap_socket(sock, server_side=True)


def _authority(state: Path) -> Authority:
    """One for all evaluations of a state directory: the gateway of the last one may be there still."""
    certificate, key = state / layout.WORLD_TRUST, state / "world.key"
    if not certificate.exists():
        made = Authority.make("world")
        key.touch(0o600)
        key.write_bytes(made.key)
        certificate.write_bytes(made.certificate)
    return Authority(certificate.read_bytes(), key.read_bytes())


class RecordingStream(io.RawIOBase):
    """A stream that records the bytes read from a connection as evidence."""

    def __init__(self, sock: socket.socket, arrival: ConnectionData, lock: threading.Lock) -> None:
        self._sock, self._arrival, self._lock = sock, arrival, lock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = self._sock.recv_into(buffer)
        with self._lock:
            self._arrival.length += size
            self._arrival.data += bytes(buffer[: min(size, MOST_BYTES - len(self._arrival.data))])
        return size


class RequestHandler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        sock = cast("socket.socket", self.request)
        sock.settimeout(_PATIENCE_SECONDS)
        world = cast("World", self.server)
        line = sock.makefile("rb", 0).readline()  # unbuffered: the next bytes are the connection's
        if not line.endswith(b"\n"):
            return
        question = json.loads(line)
        if "resolve" in question:
            sock.sendall(json.dumps([world.address(question["resolve"])]).encode() + b"\n")
        else:
            world.answer(sock, *question["dial"])
