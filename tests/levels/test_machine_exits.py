"""The only way out of a virtual machine is the gateway, which its programs trust; without a policy there is none."""

from __future__ import annotations

import pytest

from paddock import Sandbox
from paddock.errors import LevelUnavailableError
from tests.conftest import SandboxFactory

pytestmark = pytest.mark.timeout(900)  # a machine that is emulated, and the first is baked

POLICY = "egress:\n  allow:\n    - host: site.invalid\n"
CALL = "import socket; socket.create_connection(('192.0.2.80', 80), 60)"


def _machine(sandbox: SandboxFactory, policy: str | None) -> Sandbox:
    try:
        return sandbox(level="microvm", policy=policy, ttl_seconds=900)
    except LevelUnavailableError as error:
        pytest.skip(str(error))


def test_what_a_machine_calls_the_gateway_answers_and_nobody_else(sandbox: SandboxFactory) -> None:
    machine = _machine(sandbox, POLICY)
    allowed = machine.exec("curl -sS http://site.invalid/", timeout_seconds=120)
    assert "site.invalid can't be resolved" in allowed.stdout  # says the gateway, which has looked for it outside
    refused = machine.exec("curl -sS http://other.invalid/", timeout_seconds=120)
    assert "Could not resolve host" in refused.stderr
    told = machine.exec("curl -sS http://192.0.2.80/", user="root", timeout_seconds=120)
    assert told.exit_code != 0 or "192.0.2.80" in told.stdout  # reset, or said why
    trusted = machine.exec('cmp "$SSL_CERT_FILE" /etc/ssl/certs/ca-certificates.crt && grep -c BEGIN "$SSL_CERT_FILE"')
    assert int(trusted.stdout) > 0


def test_without_a_policy_a_call_fails_at_once(sandbox: SandboxFactory) -> None:
    machine = _machine(sandbox, None)
    called = machine.exec(["python3", "-c", CALL], user="root", timeout_seconds=120)
    assert "Network is unreachable" in called.stderr
