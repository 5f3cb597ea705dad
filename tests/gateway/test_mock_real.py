"""A mock's handler in the gateway of a real sandbox, from the policy's file to the answer inside."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests import orphans
from tests.conftest import SandboxFactory, gateway_pid

HANDLER = """
import os
asked = []

def handle(request):
    asked.append(request.path)
    try:
        open("/etc/hostname").read()
        return "powerful"
    except PermissionError:
        return {"asked": asked}
"""
ASK = "curl -sS -m 60 http://pay.internal{}"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    (tmp_path / "pay.py").write_text(HANDLER)
    (tmp_path / "paddock.yaml").write_text("egress:\n  mock:\n    - {host: pay.internal, with: ./pay.py}\n")
    return tmp_path / "paddock.yaml"


def test_each_sandbox_has_a_handler_of_its_own_also_a_fork_when_the_file_is_gone(
    sandbox: SandboxFactory, policy: Path
) -> None:
    made = sandbox(policy=policy)
    for path in ("/a", "/b"):
        last = made.exec(ASK.format(path), check=True)
    assert json.loads(last.stdout) == {"asked": ["/a", "/b"]}
    (policy.parent / "pay.py").unlink()
    with made.fork() as other:
        assert json.loads(other.exec(ASK.format("/c"), check=True).stdout) == {"asked": ["/c"]}
    assert json.loads(made.exec(ASK.format("/d"), check=True).stdout) == {"asked": ["/a", "/b", "/d"]}


def test_a_binding_can_be_tried_without_its_host(sandbox: SandboxFactory, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("correct-horse-battery-staple")
    secret = {"from": {"file": str(tmp_path / "key")}, "bind": {"host": "pay.internal", "header": "authorization"}}
    handler = "def handle(request):\n    return request.headers.get('authorization', 'none')\n"
    mock = {"host": "pay.internal", "with": {"python": handler}, "secret": "KEY"}
    made = sandbox(policy={"egress": {"mock": [mock]}, "secrets": {"KEY": secret}})
    ask = 'curl -sS -m 60 -H "{}: Bearer $KEY" https://pay.internal/'
    assert made.exec(ask.format("Authorization"), check=True).stdout == "Bearer paddock-secret-KEY"
    assert "the placeholder of secret KEY in header X-Key" in made.exec(ask.format("X-Key"), check=True).stdout


def test_handlers_and_their_host_end_with_the_gateway(
    sandbox: SandboxFactory, policy: Path, shared_state: Path
) -> None:
    made = sandbox(policy=policy)
    made.exec(ASK.format("/a"), check=True)
    first = gateway_pid(shared_state)
    assert first is not None
    below = orphans.descendants(first)
    assert len(below) >= 2, "the host and the handler"
    os.kill(first, signal.SIGKILL)
    assert orphans.wait_until(lambda: not set(below) & set(_living()))
    assert orphans.wait_until(lambda: gateway_pid(shared_state) not in (None, first))
    assert json.loads(made.exec(ASK.format("/b"), check=True).stdout) == {"asked": ["/b"]}


def _living() -> list[int]:
    return orphans.descendants(int(os.environ.get(orphans.SUPERVISOR, "1")))
