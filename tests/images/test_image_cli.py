"""`paddock image`, and `paddock run` from an image, each call a process of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paddock.model import CollectGarbage, ListImages, PullImage, RemoveImage
from tests.conftest import SandboxFactory
from tests.images.layouts import busybox_layer, layer, member, write_layout

Paddock = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def paddock(shared_state: Path, tmp_path: Path) -> Paddock:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "paddock", *arguments],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=100,
            check=False,
            cwd=tmp_path,
        )

    return run


def test_an_image_is_pulled_listed_run_and_removed(paddock: Paddock, tmp_path: Path, busybox: bytes) -> None:
    write_layout(
        tmp_path / "layout",
        busybox_layer(busybox),
        User="app",
        Env=["WHO=image"],
        Entrypoint=["/bin/echo", "entry"],
        Cmd=["default"],
        WorkingDir="/home/app",
    )
    pulled = paddock("image", "pull", "oci:layout", "--json")
    assert pulled.returncode == 0, pulled.stderr
    image = json.loads(pulled.stdout)
    assert (image["reference"], image["entrypoint"]) == (f"oci:{tmp_path}/layout", ["/bin/echo", "entry"])
    assert image["digest"][:19] in paddock("image", "ls").stdout
    assert re.search(rf"{re.escape(image['reference'])} +built", paddock("template", "ls").stdout)
    run = ("run", "--template", "oci:layout")
    assert paddock(*run).stdout == "entry default\n"
    assert paddock(*run, "--", "given", "here").stdout == "entry given here\n"
    assert paddock(*run, "--entrypoint", "/bin/pwd").stdout == "/home/app\n"
    assert paddock(*run, "--entrypoint", "", "--", "sh", "-c", "echo $WHO").stdout == "image\n"
    refused = paddock("run", "--entrypoint", "x", "--", "true")
    assert refused.returncode == 125
    assert "is not an image" in refused.stderr
    assert paddock("image", "rm", image["digest"][:19]).returncode == 0
    assert image["digest"] not in paddock("image", "ls", "--json").stdout
    assert paddock("image", "rm", "oci:layout").returncode == 125


def test_an_image_without_a_command_says_so(paddock: Paddock, tmp_path: Path, busybox: bytes) -> None:
    write_layout(tmp_path / "layout", busybox_layer(busybox))
    said = paddock("run", "--template", "oci:layout")
    assert said.returncode == 125
    assert "no command of its own" in said.stderr
    assert paddock("run", "--template", "oci:layout", "--entrypoint", "").returncode == 125


def test_what_a_sandbox_lives_on_stays_until_it_ends(sandbox: SandboxFactory, tmp_path: Path, busybox: bytes) -> None:
    from paddock import local

    door = local()
    reference = write_layout(tmp_path / "layout", busybox_layer(busybox), layer(member("mark", tmp_path.name.encode())))
    box = sandbox(template=reference)
    image = door.perform(PullImage(reference=reference, refresh=False))
    assert image in door.perform(ListImages())
    door.perform(RemoveImage(image=reference))
    assert image not in door.perform(ListImages())
    kept = [item for item in door.perform(CollectGarbage()).items if item.kept_because and box.id in item.kept_because]
    assert kept
    assert box.exec(["cat", "/mark"]).stdout == tmp_path.name
    child = box.fork()
    box.kill()
    assert child.exec(["cat", "/mark"]).stdout == tmp_path.name
    child.kill()
    gone = {item.what for item in door.perform(CollectGarbage()).items if item.kept_because is None}
    assert {item.what for item in kept} <= gone
