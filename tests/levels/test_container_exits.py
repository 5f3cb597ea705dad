"""The only way out of a container is the gateway, which its programs trust; the network that its engine gives it leads
nowhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paddock import Sandbox
from paddock.errors import UnsupportedError
from tests.conftest import SandboxFactory, gateway_pid

POLICY = "egress:\n  allow:\n    - host: site.invalid\n"
CALL = "import socket; socket.create_connection(('192.0.2.80', 80), 60)"
Make = Callable[..., Sandbox]


@pytest.fixture
def container(sandbox: SandboxFactory, engine: None) -> Make:
    def make(**options: Any) -> Sandbox:
        try:
            return sandbox(level="container", **options)
        except UnsupportedError as error:
            pytest.skip(str(error))

    return make


def assert_led(made: Sandbox) -> None:
    allowed = made.exec("curl -sS http://site.invalid/", timeout_seconds=120)
    assert "site.invalid can't be resolved" in allowed.stdout, allowed  # says the gateway: it has looked for it outside
    refused = made.exec("curl -sS http://other.invalid/", timeout_seconds=120)
    assert "Could not resolve host" in refused.stderr


def test_what_a_container_calls_the_gateway_answers_and_nobody_else(container: Make) -> None:
    made = container(policy=POLICY)
    assert_led(made)
    told = made.exec("curl -sS http://192.0.2.80/", user="root", timeout_seconds=120)
    assert told.exit_code != 0 or "192.0.2.80" in told.stdout  # reset, or said why
    trusted = made.exec('cmp "$SSL_CERT_FILE" /etc/ssl/certs/ca-certificates.crt && grep -c BEGIN "$SSL_CERT_FILE"')
    assert int(trusted.stdout) > 0
    for path in ("/etc/ssl/certs/ca-certificates.crt", "/.paddock-host/trust.pem"):
        assert made.exec(f"echo x >{path}; rm -f {path}; mv {path} /tmp/x", user="root").exit_code != 0
    assert trusted.stdout == made.exec('grep -c BEGIN "$SSL_CERT_FILE"').stdout


def test_without_a_policy_a_call_fails_at_once(container: Make) -> None:
    called = container().exec(["python3", "-c", CALL], user="root", timeout_seconds=120)
    assert "Network is unreachable" in called.stderr


def test_one_that_runs_is_given_a_way_out(container: Make, shared_state: Path) -> None:
    made = container()
    assert made.exec(["python3", "-c", CALL]).exit_code != 0
    made.set_policy(POLICY)
    assert_led(made)
    assert gateway_pid(shared_state) is not None
    assert made.exec('cmp "$SSL_CERT_FILE" /etc/ssl/certs/ca-certificates.crt').ok


def test_what_a_policy_protects_nobody_inside_changes(container: Make) -> None:
    made = container(policy=POLICY + "files:\n  protect: [/etc/passwd]\n")
    for command in ("echo x >/etc/passwd", "rm -f /etc/passwd", "mv /etc/passwd /etc/p", "mv /etc /e"):
        assert made.exec(command, user="root").exit_code != 0
