"""Files that go on behind another wall: nothing of the first wall's own comes along, and nothing that was planted."""

from __future__ import annotations

import pytest

from paddock import Sandbox
from paddock.errors import NotFoundError, UnsupportedError
from tests.conftest import SandboxFactory


@pytest.fixture
def gvisor(sandbox: SandboxFactory) -> Sandbox:
    try:
        return sandbox(level="gvisor")
    except UnsupportedError as error:
        pytest.skip(str(error))


def test_a_jail_does_not_see_the_memory_that_gvisor_has_saved(sandbox: SandboxFactory, gvisor: Sandbox) -> None:
    gvisor.exec("echo kept >/var/tmp/kept", check=True)
    snapshot = gvisor.snapshot()
    jail = sandbox(level="jail", snapshot=snapshot)
    done = jail.exec("cat /var/tmp/kept; ls -A / | grep -x .frozen")
    assert (done.stdout, done.exit_code) == ("kept\n", 1)
    jail.delete_snapshot(snapshot)


@pytest.mark.parametrize("plant", ["ln -s /var/tmp /.frozen", "mkdir /.frozen; mkfifo /.frozen/about"])
def test_what_was_planted_in_its_place_hides_nothing_and_keeps_nobody_waiting(
    sandbox: SandboxFactory, gvisor: Sandbox, plant: str
) -> None:
    jail = sandbox(level="jail")
    try:
        jail.exec(f"echo kept >/var/tmp/kept; {plant}", user="root", check=True)
    except (NotFoundError, UnsupportedError) as error:  # without a root inside nobody writes there
        pytest.skip(str(error))
    snapshot = jail.snapshot()
    made = sandbox(level="gvisor", snapshot=snapshot)
    assert made.exec("cat /var/tmp/kept").stdout == "kept\n"
    jail.delete_snapshot(snapshot)


def test_programs_at_gvisor_trust_the_gateway(sandbox: SandboxFactory) -> None:
    try:
        made = sandbox(level="gvisor", policy={"egress": {"allow": []}})
    except UnsupportedError as error:
        pytest.skip(str(error))
    trusted = made.exec('cmp "$SSL_CERT_FILE" /etc/ssl/certs/ca-certificates.crt && grep -c BEGIN "$SSL_CERT_FILE"')
    assert int(trusted.stdout) > 0
