"""What is copied of a container is what is copied of a jail: its own workspace too, and walls can be changed."""

from __future__ import annotations

import pytest

from paddock import Sandbox, Workspace
from paddock.errors import UnsupportedError
from tests.conftest import SandboxFactory


def test_a_fork_has_a_workspace_of_its_own_and_a_jail_begins_with_a_snapshot(
    sandbox: SandboxFactory, engine: None
) -> None:
    sandbox()  # the state directory is this test's from here on
    workspace = Workspace.open("copied")
    try:
        made = sandbox(level="container", workspace=workspace.name)
    except UnsupportedError as error:
        pytest.skip(str(error))
    made.exec("echo parent >work; echo kept >/var/tmp/kept; rm /etc/group", user="root", cwd="/workspace", check=True)
    with made.fork() as child:
        assert child.exec("cat work /var/tmp/kept; test -e /etc/group", cwd="/workspace").stdout == "parent\nkept\n"
        child.exec("echo child >work", user="root", cwd="/workspace", check=True)
    assert made.exec("cat work", cwd="/workspace").stdout == "parent\n"
    snapshot = made.snapshot()
    with Sandbox.create(level="jail", snapshot=snapshot) as jail:
        done = jail.exec("cat work /var/tmp/kept; test -e /etc/group", cwd="/workspace")
        assert (done.stdout, done.exit_code) == ("parent\nkept\n", 1)
    made.delete_snapshot(snapshot)
    made.kill()
    workspace.delete(discard=True)
