"""A host of repositories as there are many: git and the API of a forge at one HTTPS address, for those with a login."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.repositories.git_servers import Origin, body_of, cgi
from tests.results.forge import NAME, OWNER, TOKEN, Contract


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None: ...

    def _answer(self) -> None:
        host: Any = self.server
        login = self.headers.get("Authorization")
        host.asked.append((self.command, self.path, login))
        host.watch()
        body = body_of(self)
        if self.path.startswith("/api/"):
            headers = {k.lower(): v for k, v in self.headers.items()}
            host.contract.branches = host.branches()
            status, document = host.contract.respond(self.command, self.path, headers, json.loads(body or b"null"))
            self._say(status, [("Content-Type", "application/json")], json.dumps(document).encode())
        elif host.redirect:
            self._say(302, [("Location", host.redirect + self.path)])
        elif host.logins and login not in host.logins:
            self._say(401, [("WWW-Authenticate", 'Basic realm="git"'), ("WWW-Authenticate", 'Bearer realm="git"')])
        elif self.path.endswith(host.dies.get("before", "nowhere")):
            self._die()
        else:
            status, given, content = cgi(self, host.root, body, "user")
            if self.path.endswith(host.dies.get("after", "nowhere")):
                self._die()
            elif self.path.endswith(host.dies.get("within", "nowhere")):
                self.send_response(status)
                for key, value in given:
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) // 2])
                self._die()
            else:
                self._say(status, given, content)

    def _die(self) -> None:
        """As a server that was killed: the connection ends, and nothing more is said."""
        self.close_connection = True

    def _say(self, status: int, headers: list[Any], content: bytes = b"") -> None:
        self.send_response(status)
        for key, value in headers:
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = _answer


class Host(ThreadingHTTPServer):
    """`logins` are the values of Authorization that are taken, `dies` says where a request ends without an answer
    (before, within, after) and which one does; `watch` is called while a request waits."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, root: Path, contract: Contract, certificate: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        # In the thread of a request: one that does not shake hands would keep the others waiting.
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.root, self.contract = root, contract
        self.logins: set[str] = set()
        self.dies: dict[str, str] = {}
        self.redirect = ""
        self.asked: list[tuple[str, str, str | None]] = []
        self.watch: Callable[[], None] = lambda: None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that does not trust us hangs up."""

    @property
    def bare(self) -> Path:
        return self.root / OWNER / f"{NAME}.git"

    @property
    def address(self) -> str:
        return f"https://127.0.0.1:{self.server_address[1]}"

    @property
    def url(self) -> str:
        return f"{self.address}/{OWNER}/{NAME}.git"

    def branches(self) -> set[str]:
        return set(self.git("for-each-ref", "--format=%(refname:short)", "refs/heads").split())

    def git(self, *arguments: str) -> str:
        return Origin.git(self, *arguments)  # type: ignore[arg-type]

    @property
    def path(self) -> Path:
        return self.bare

    def admit(self, scheme: str, username: str, token: str) -> None:
        """Only this login is taken from now on."""
        basic = "Basic " + base64.b64encode(f"{username}:{token}".encode()).decode()
        self.logins = {basic if scheme == "Basic" else f"Bearer {token}"}
        self.contract.token = token


def bare_repository(root: Path, files: dict[str, str | bytes]) -> None:
    source = Origin(root / "source")
    source.commit(files)
    source.git("clone", "--quiet", "--bare", ".", str(root / OWNER / f"{NAME}.git"))


def certificate(directory: Path) -> Path:
    """A key, and a certificate for 127.0.0.1 that vouches for itself."""
    key, made = directory / "key.pem", directory / "certificate.pem"
    subject = ("-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    argv = ["openssl", "req", "-x509", *curve, *subject, "-keyout", str(key), "-out", str(made)]
    subprocess.run(argv, check=True, capture_output=True)
    both = directory / "both.pem"
    both.write_bytes(key.read_bytes() + made.read_bytes())
    return made


@contextmanager
def serving(root: Path, contract: Contract, certificates: Path) -> Generator[Host]:
    with Host(root, contract, certificates / "both.pem") as host:
        thread = threading.Thread(target=host.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield host
        finally:
            host.shutdown()
            thread.join()


@contextmanager
def with_login(directory: Path) -> Generator[Host]:
    """A repository and a forge below `directory`, to which the git of this process has the login."""
    directory.chmod(0o755)
    certificates, home = directory / "certificates", directory / "home"
    certificates.mkdir()
    certificate(certificates)
    bare_repository(directory / "root", {"README": "one\n"})
    with serving(directory / "root", Contract("gitea"), certificates) as made, pytest.MonkeyPatch.context() as patched:
        home.mkdir()
        (home / "kept").write_text(f"https://alice:{TOKEN}@{made.address.removeprefix('https://')}\n")
        (home / ".gitconfig").write_text(f'[credential]\n\thelper = "store --file={home}/kept"\n')
        patched.setenv("HOME", str(home))
        patched.setenv("GIT_SSL_CAINFO", str(certificates / "certificate.pem"))
        yield made
