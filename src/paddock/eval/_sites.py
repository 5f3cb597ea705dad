"""How the servers out there answer: as obliging as they can be. What a twin needs is right, everything else is `ok`."""

from __future__ import annotations

import io
import json
import socket
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

REPOSITORY = b"acme/app"
OBJECT = b"1" * 40
_NOTHING = b"0" * 40


class Talk(BaseHTTPRequestHandler):
    """Of one connection, as `host`."""

    protocol_version = "HTTP/1.1"

    def __init__(self, sock: socket.socket, reader: io.BufferedReader, host: str) -> None:
        self._reader, self.host = reader, host
        super().__init__(sock, ("world", 0), None)  # pyright: ignore[reportArgumentType] - there is no server

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
    """The kind of an answer, and the answer."""
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
