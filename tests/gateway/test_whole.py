"""From a program in a sandbox to a server on this machine: namespace, supervisor, service, gateway's process and policy
as they are in service."""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paddock.audit import verify
from paddock.gateway.authority import Authority
from paddock.supervisor import layout

POLICY = """
egress:
  allow:
    - {{host: localhost, ports: [{tls}], methods: [GET], paths: ["/ok"]}}
    - {{cidr: 127.0.0.1/32, ports: [{tls}]}}
    - {{cidr: {own}/32, ports: [{clear}]}}
"""

INSIDE = """
import json, ssl, sys, socket, urllib.error, urllib.request
answers = []
def ask(url, proxy=None, data=None):
    handlers = [urllib.request.ProxyHandler({"https": proxy, "http": proxy} if proxy else {})]
    try:
        with urllib.request.build_opener(*handlers).open(urllib.request.Request(url, data), timeout=30) as answer:
            answers.append([answer.status, answer.read().decode()])
    except urllib.error.HTTPError as error: answers.append([error.code, error.read().decode()])
    except Exception as error: answers.append([type(error).__name__, str(error)])
tls, clear, proxy = sys.argv[1:]
ask(tls + "/ok", proxy)
ask(tls + "/no", proxy)
ask(tls + "/ok", proxy, b"data")
ask(clear + "/transparent")
ask("http://192.0.2.1/")
ask("https://192.0.2.1/")
ask("http://evil.test/")
print(json.dumps(answers))
"""

OUTSIDE = """
import sys
from paddock import Sandbox
policy, program, *arguments = sys.argv[1:]
with Sandbox.create(policy=policy) as sandbox:
    done = sandbox.exec(["python3", "-c", program, *arguments], timeout_seconds=90)
    sys.stderr.write(done.stderr)
    print(done.stdout)
"""


class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = f"{self.path} of {self.headers['Host']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None: ...


@contextmanager
def serving(address: str, authority: Authority | None = None) -> Generator[int]:
    with http.server.ThreadingHTTPServer((address, 0), Server) as server:
        if authority is not None:
            server.socket = authority.context("localhost").wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def own_address() -> str:
    """One by which this machine is known to others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but its loopback's")
        return probe.getsockname()[0]


def test_what_policy_allows_arrives_and_all_else_is_told_at_once(state_dir: Path, tmp_path: Path) -> None:
    public, own = Authority.make("public"), own_address()
    trusted = tmp_path / "public.pem"
    trusted.write_bytes(public.certificate)
    with serving("127.0.0.1", public) as tls, serving(own) as clear:
        policy = POLICY.format(tls=tls, clear=clear, own=own)
        urls = (f"https://localhost:{tls}", f"http://{own}:{clear}", "http://198.18.0.1:3128")
        run = subprocess.run(
            [sys.executable, "-c", OUTSIDE, policy, INSIDE, *urls],
            env={**os.environ, "PADDOCK_STATE_DIR": str(state_dir), "SSL_CERT_FILE": str(trusted)},
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
    assert run.returncode == 0, run.stderr
    inspected, path, method, transparent, denied, denied_tls, unknown = json.loads(run.stdout)
    assert inspected == [200, f"/ok of localhost:{tls}"]
    assert path[0] == method[0] == 403
    assert "nothing allows GET /no" in path[1]
    assert "nothing allows POST /ok" in method[1]
    assert transparent == [200, f"/transparent of {own}:{clear}"]
    assert denied[0] == 403
    assert denied_tls[0] == "URLError"
    assert "access denied" in denied_tls[1].replace("_", " ").lower()
    assert unknown[0] == "URLError"
    assert verify(state_dir / layout.AUDIT).ok
