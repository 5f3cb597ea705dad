"""Sandboxes from images: one program and nothing else is enough; what the image says about its commands holds."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from paddock.errors import ImageInvalidError, NotFoundError
from tests.conftest import SandboxFactory
from tests.images.layouts import (
    LayoutWriter,
    busybox_layer,
    distroless_layer,
    layer,
    member,
    write_layout,
)


def test_commands_files_and_a_shell_work_in_an_image_of_busybox(
    sandbox: SandboxFactory, tmp_path: Path, busybox: bytes
) -> None:
    reference = write_layout(tmp_path / "layout", busybox_layer(busybox), User="app", Env=["FROM=image"])
    box = sandbox(template=reference)
    assert box.exec("id -u; pwd; echo $FROM $HOME; echo here > file; cat file").stdout.split() == [
        "1000", "/workspace", "image", "/home/app", "here",
    ]  # fmt: skip
    box.filesystem.write("/workspace/other", "written")
    assert box.exec(["cat", "other"]).stdout == "written"
    assert box.exec("touch /bin/mine").exit_code != 0 or os.geteuid() != 0
    background = box.start("echo said", background=True)
    background.wait()
    assert b"".join(box.output(background.id)) == b"said\n"


def test_an_image_without_a_shell_runs_its_program_and_says_what_a_line_needs(
    sandbox: SandboxFactory, tmp_path: Path, busybox: bytes
) -> None:
    box = sandbox(template=write_layout(tmp_path / "layout", distroless_layer(busybox)))
    assert box.exec(["/busybox", "echo", "works"]).stdout == "works\n"
    box.filesystem.write("file", "content")
    assert box.filesystem.read("/workspace/file") == b"content"
    assert [info.name for info in box.filesystem.list("/workspace")] == ["file"]
    said = box.exec("echo works")
    assert said.exit_code == 127
    assert re.search(r"/bin/sh.*as a sequence", said.stderr)


def test_forks_and_snapshots_of_one_from_an_image_have_its_files(
    sandbox: SandboxFactory, tmp_path: Path, busybox: bytes
) -> None:
    reference = write_layout(tmp_path / "layout", busybox_layer(busybox), User="app")
    box = sandbox(template=reference)
    box.exec("echo mine > file", check=True)
    child = box.fork()
    try:
        assert child.exec("cat file; cat /etc/group").stdout.startswith("mine\nroot:")
    finally:
        child.kill()
    snapshot = box.snapshot()
    try:
        assert sandbox(snapshot=snapshot).exec("cat file").stdout == "mine\n"
    finally:
        box.delete_snapshot(snapshot)


@pytest.mark.root
def test_an_image_that_runs_as_root_is_root_over_its_own_files_alone(
    sandbox: SandboxFactory, tmp_path: Path, busybox: bytes
) -> None:
    files = layer(member("etc/owned", b"secret", mode=0o600, uid=8, gid=8))
    box = sandbox(template=write_layout(tmp_path / "layout", busybox_layer(busybox), files))
    assert box.exec("id -u; cat /etc/owned; echo > /etc/mine && echo written").stdout == "0\nsecretwritten\n"
    assert box.exec("id -u; cat /etc/owned", user="app").stdout == "1000\n"
    assert box.exec("cat /proc/self/status | busybox grep CapEff").stdout.split()[1] != "000001ffffffffff"
    box.filesystem.write("/etc/written", "by root")
    assert box.exec("busybox stat -c %u /etc/written").stdout == "0\n"


def test_a_path_of_an_image_is_one_from_here(
    sandbox: SandboxFactory, tmp_path: Path, busybox: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_layout(tmp_path / "layout", distroless_layer(busybox))
    monkeypatch.chdir(tmp_path)
    box = sandbox(template="oci:layout:latest")
    assert box.info.template == f"oci:{tmp_path}/layout:latest"


def test_what_is_wrong_with_an_image_is_said_and_no_sandbox_is_left(sandbox: SandboxFactory, tmp_path: Path) -> None:
    from paddock import Sandbox

    before = {box.id for box in Sandbox.list()}
    with pytest.raises(NotFoundError, match="no image layout"):
        sandbox(template=f"oci:{tmp_path}/nothing")
    writer = LayoutWriter(tmp_path / "layout")
    writer.image([layer(member("../out"))])
    with pytest.raises(ImageInvalidError, match="leads outside"):
        sandbox(template=f"oci:{writer.path}")
    assert {box.id for box in Sandbox.list()} == before
