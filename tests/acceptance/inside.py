"""What the programs of these tests do inside: Python that is given to `python3 -c`, and its answers as JSON."""

from __future__ import annotations

import json
from typing import Any

from paddock import Sandbox

TALK = r"""
import errno, json, socket, ssl, sys

def end_of(reader):
    said = b""
    try:
        while part := reader(65536): said += part
    except OSError as error:
        if not said: return type(error).__name__
    return said.decode("latin-1")

def exchange(to, port, data, tls=False, name=None, proxy=False, wrong_ca=False):
    "All that is answered to `data`, or the name of the error. `tls`: by a client that asks for `name` and trusts all."
    try:
        with socket.create_connection((to, port), 60) as s:
            if proxy:
                s.sendall(f"CONNECT {proxy} HTTP/1.1\r\nhost: {proxy}\r\n\r\n".encode())
                said = s.recv(4096).decode("latin-1")
                if not said.startswith("HTTP/1.1 200"): return said
            if tls:
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                s = context.wrap_socket(s, server_hostname=name)
            if data is not None: s.sendall(data if isinstance(data, bytes) else data.encode())
            return end_of(s.recv)
    except ssl.SSLError as error: return "SSLError " + str(error.reason)
    except OSError as error:
        name = type(error).__name__
        return errno.errorcode.get(error.errno, name) if type(error) is OSError else name

def get(host, path="/", *fields, method="GET", body=""):
    head = [f"{method} {path} HTTP/1.1", f"host: {host}", *fields, "connection: close"]
    if body: head.append(f"content-length: {len(body.encode())}")
    return "\r\n".join([*head, "", body])

def answer(value): sys.stdout.write("\n" + json.dumps(value))
"""


def ask(sandbox: Sandbox, code: str, *arguments: object, user: str | None = None) -> Any:
    """What `code`, which begins with TALK, gave to `answer`. Its arguments are `given`."""
    program = f"{TALK}\ngiven = json.loads(sys.argv[1])\n{code}"
    argv = ("python3", "-c", program, json.dumps(arguments))
    done = sandbox.exec(argv, user=user, timeout_seconds=100)
    assert done.exit_code == 0, f"the probe itself failed: {done!r}\n{done.stderr}"
    return json.loads(done.stdout.rpartition("\n")[2])


REFUSED = ("ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError", "ENETUNREACH", "")


def refused(said: str) -> bool:
    """At once, and in words where HTTP or TLS was spoken."""
    return said in REFUSED or said.startswith(
        ("HTTP/1.1 400 ", "HTTP/1.1 403 ", "HTTP/1.1 421 ", "SSLError ", "\x15\x03")
    )
