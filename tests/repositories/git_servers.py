"""Repositories to fetch from, and real git servers for them: `git daemon`, and `git http-backend` with passwords."""

from __future__ import annotations

import base64
import os
import socketserver
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_ALLOW_PROTOCOL": "file",
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "GIT_CONFIG_KEY_1": "uploadpack.allowAnySHA1InWant",
    "GIT_CONFIG_VALUE_1": "true",
    "HOME": "/nonexistent",
}


class Origin:
    """A repository with a work tree, of which the servers serve the `.git`."""

    def __init__(self, path: Path, *, object_format: str = "sha1") -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main", f"--object-format={object_format}")

    def git(self, *arguments: str, input: bytes | None = None) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=self.path, env=ENVIRONMENT, input=input, capture_output=True, check=False
        )
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout.decode().strip()

    def commit(self, files: dict[str, str | bytes] | None = None, message: str = "change") -> str:
        for name, content in (files or {}).items():
            place = self.path / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content.encode() if isinstance(content, str) else content)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", message)
        return self.head()

    def head(self, ref: str = "HEAD") -> str:
        return self.git("rev-parse", ref)

    def tree_of(self, *entries: tuple[str, str, str]) -> str:
        """A commit, at refs/heads/main, whose tree has these (mode, id, name), which git itself would not make."""
        raw = b"".join(f"{mode} {name}".encode() + b"\0" + bytes.fromhex(oid) for mode, oid, name in entries)
        tree = self.git("hash-object", "-t", "tree", "-w", "--literally", "--stdin", input=raw)
        commit = self.git("commit-tree", "-m", "made by hand", tree)
        self.git("update-ref", "refs/heads/main", commit)
        return commit

    def blob(self, content: bytes) -> str:
        return self.git("hash-object", "-w", "--stdin", input=content)

    @property
    def url(self) -> str:
        return f"file://{self.path}"


class _Daemon(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        server: Any = self.server
        server.connections += 1
        with subprocess.Popen(
            ["git", "daemon", "--inetd", "--export-all", f"--base-path={server.root}"],
            stdin=self.request.fileno(),
            stdout=self.request.fileno(),
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
        ):
            pass


class _Threads(socketserver.ThreadingTCPServer):
    daemon_threads = False
    block_on_close = True
    connections = 0
    root = Path()


@contextmanager
def git_daemon(root: Path) -> Generator[_Threads]:
    """Serves all below `root` at `git://127.0.0.1:<port>`; counts connections."""
    with _Threads(("127.0.0.1", 0), _Daemon) as server:
        server.root = root
        with _serving(server):
            yield server


def address(server: Any, name: str, scheme: str = "git") -> str:
    return f"{scheme}://127.0.0.1:{server.server_address[1]}/{name}"


def body_of(request: BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("Transfer-Encoding") != "chunked":
        return request.rfile.read(int(request.headers.get("Content-Length") or 0))
    body = b""
    while size := int(request.rfile.readline(), 16):
        body += request.rfile.read(size)
        request.rfile.readline()
    request.rfile.readline()
    return body


def cgi(request: BaseHTTPRequestHandler, root: Path, body: bytes, user: str) -> tuple[int, list[Any], bytes]:
    """What git's own server says to this request: status, headers, content. Those with a name may push."""
    path, _, query = request.path.partition("?")
    done = subprocess.run(
        ["git", "http-backend"],
        env={
            **ENVIRONMENT,
            "GIT_PROJECT_ROOT": str(root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": request.command,
            "CONTENT_TYPE": request.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
            "REMOTE_USER": user,
            "REMOTE_ADDR": "127.0.0.1",
        },
        input=body,
        capture_output=True,
        check=False,
    )
    head, _, content = done.stdout.partition(b"\r\n\r\n")
    headers = [tuple(line.split(": ", 1)) for line in head.decode().split("\r\n") if ": " in line]
    status = next((int(value[:3]) for key, value in headers if key == "Status"), 200)
    return status, [(key, value) for key, value in headers if key != "Status"], content


class _Backend(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None: ...

    def _answer(self) -> None:
        server: Any = self.server
        server.asked.append((self.path, self.headers.get("Authorization")))
        body = body_of(self)
        if server.redirect:
            self._say(302, [("Location", server.redirect + self.path)])
            return
        path, question, query = self.path.partition("?")
        name = path.strip("/").split("/")[0]
        if name in server.moved:
            self._say(301, [("Location", path.replace(name, server.moved[name], 1) + question + query)])
            return
        if server.plain:
            file = server.root / path.lstrip("/")
            self._say(200, [], file.read_bytes()) if file.is_file() else self._say(404, [])
            return
        wanted = server.passwords.get(name)
        if wanted is not None and self.headers.get("Authorization") != wanted:
            self._say(401, [("WWW-Authenticate", 'Basic realm="git"')])
            return
        self._say(*cgi(self, server.root, body, "user" if wanted else ""))

    def _say(self, status: int, headers: list[Any], content: bytes = b"") -> None:
        self.send_response(status)
        for key, value in headers:
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = _answer


class HttpServer(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    root = Path()
    redirect = ""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Backend)
        self.passwords: dict[str, str] = {}
        self.moved: dict[str, str] = {}
        self.plain = False
        """Serves files, and knows nothing of git."""
        self.asked: list[tuple[str, str | None]] = []

    def protect(self, name: str, username: str, password: str) -> None:
        self.passwords[name] = "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


@contextmanager
def http_backend(root: Path) -> Generator[HttpServer]:
    """Serves all below `root` at `http://127.0.0.1:<port>`, some of it for those with a password."""
    with HttpServer() as server:
        server.root = root
        with _serving(server):
            yield server


@contextmanager
def _serving(server: socketserver.BaseServer) -> Generator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


def files_below(directory: Path) -> set[str]:
    return {os.path.join(path, name) for path, _, names in os.walk(directory) for name in names}
