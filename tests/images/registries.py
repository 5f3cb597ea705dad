"""Registries: a small one of our own, which may lie, and Debian's docker-registry."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.images.layouts import digest


@dataclass
class Registry:
    """Serves one repository, `me/app`, from a layout. `asked` are paths with the credential that came along."""

    layout: Path
    tags: dict[str, str] = field(default_factory=dict[str, str])
    login: str | None = None
    """USER:PASSWORD: who has none gets no token; None: no token is wanted."""
    blobs_at: str | None = None
    """Blobs are led on to there."""
    changed: dict[str, bytes] = field(default_factory=dict[str, bytes])
    kinds: dict[str, str] = field(default_factory=dict[str, str])
    realm: str | None = None
    asked: list[tuple[str, str | None]] = field(default_factory=list[tuple[str, str | None]])
    host: str = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path, _, query = handler.path.partition("?")
        credential = handler.headers.get("Authorization")
        self.asked.append((handler.path, credential))
        if path == "/token":
            if self.login is not None and credential != f"Basic {base64.b64encode(self.login.encode()).decode()}":
                _send(handler, 401, b"")
            else:
                assert "scope=repository%3Ame%2Fapp%3Apull" in query
                _send(handler, 200, json.dumps({"token": "granted"}).encode(), "application/json")
            return
        if self.login is not None and credential != "Bearer granted":
            realm = self.realm or f"http://{self.host}/token"
            _send(handler, 401, b"", challenge=f'Bearer realm="{realm}",service="ours"')
            return
        found = re.fullmatch(r"/v2/me/app/(manifests|blobs)/(.+)", path)
        if found is None:
            _send(handler, 404, b"{}")
            return
        kind, name = found.groups()
        name = self.tags.get(name, name)
        if kind == "blobs" and self.blobs_at is not None:
            _send(handler, 307, b"", location=f"{self.blobs_at}{path}")
            return
        place = self.layout / "blobs" / name.replace(":", "/")
        if name not in self.changed and not place.is_file():
            _send(handler, 404, b"{}")
            return
        data = self.changed.get(name) or place.read_bytes()
        _send(handler, 200, data, self.kinds.get(name) or _kind(data))


def _kind(data: bytes) -> str:
    try:
        return str(json.loads(data).get("mediaType", "application/octet-stream"))
    except ValueError:
        return "application/octet-stream"


def _send(
    handler: BaseHTTPRequestHandler,
    status: int,
    body: bytes,
    kind: str = "text/plain",
    *,
    challenge: str | None = None,
    location: str | None = None,
) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(body)))
    if challenge is not None:
        handler.send_header("WWW-Authenticate", challenge)
    if location is not None:
        handler.send_header("Location", location)
    handler.end_headers()
    handler.wfile.write(body)


@contextmanager
def serving(registry: Registry) -> Generator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.answer(self)

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.host = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield registry.host
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def debians(directory: Path) -> Generator[str]:
    """Debian's docker-registry, on a port that the kernel chooses."""
    tool = shutil.which("docker-registry")
    assert tool is not None
    directory.mkdir()
    config = directory / "config.yml"
    config.write_text(
        "version: 0.1\nlog: {level: info, formatter: json}\n"
        f"storage: {{filesystem: {{rootdirectory: {directory}/blobs}}}}\nhttp: {{addr: '127.0.0.1:0'}}\n"
    )
    process = subprocess.Popen(
        [tool, "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    drain = threading.Thread(target=process.stderr.read)
    try:
        for line in process.stderr:
            if found := re.search(r"listening on (127\.0\.0\.1:\d+)", line):
                break
        else:
            raise OSError("the registry ended")
        drain.start()
        yield found[1]
    finally:
        process.terminate()
        process.wait()
        if drain.ident is not None:
            drain.join()
        process.stderr.close()


def tag(layout: Path, described: dict[str, object]) -> str:
    found = str(described["digest"])
    assert digest((layout / "blobs" / found.replace(":", "/")).read_bytes()) == found
    return found
