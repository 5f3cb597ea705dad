"""An image is a template at every level: a busybox and nothing else, and one program without a shell."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.conftest import SandboxFactory
from tests.images.layouts import busybox_layer, distroless_layer, layer, member, static_busybox, write_layout
from tests.levels.conftest import LEVELS

pytestmark = pytest.mark.timeout(900)  # a machine that is emulated, and the first is baked


@pytest.fixture
def busybox() -> bytes:
    found = static_busybox()
    if found is None:
        pytest.skip("no static busybox here: apt-get install busybox-static")
    return found


@pytest.mark.parametrize(
    "level", ["microvm", *(pytest.param(level, marks=pytest.mark.both) for level in LEVELS if level != "microvm")]
)
def test_an_image_of_busybox_is_what_it_says_at_every_level(
    create: SandboxFactory, tmp_path: Path, busybox: bytes
) -> None:
    hidden = layer(member("bin/.wh.touch"), member("etc/mark", b"marked"))
    reference = write_layout(tmp_path / "layout", busybox_layer(busybox), hidden, User="app", Env=["FROM=image"])
    box = create(template=reference)
    assert box.exec("id -u; echo $FROM; cat /etc/mark; ls /bin/touch", cwd="/").stdout == "1000\nimage\nmarked"
    box.filesystem.write("/workspace/file", b"content")
    assert box.exec(["cat", "/workspace/file"]).stdout == "content"


@pytest.mark.parametrize("level", ["jail", "container", "gvisor", pytest.param("microvm", marks=pytest.mark.slow)])
def test_an_image_without_a_shell_runs_its_program_at_every_level(
    create: SandboxFactory, tmp_path: Path, busybox: bytes
) -> None:
    box = create(template=write_layout(tmp_path / "layout", distroless_layer(busybox)))
    assert box.exec(["/busybox", "echo", "works"]).stdout == "works\n"
    said = box.exec("echo works")
    assert said.exit_code == 127
    assert "/bin/sh" in said.stderr


@pytest.mark.parametrize("level", ["jail", "container", "gvisor", pytest.param("microvm", marks=pytest.mark.slow)])
def test_what_podman_builds_of_one_static_program_is_all_that_a_sandbox_needs(
    create: SandboxFactory, tmp_path: Path, busybox: bytes
) -> None:
    (tmp_path / "context").mkdir()
    (tmp_path / "context/busybox").write_bytes(busybox)
    (tmp_path / "context/busybox").chmod(0o755)
    (tmp_path / "context/Containerfile").write_text("FROM scratch\nCOPY busybox /busybox\n")
    archive = tmp_path / "image.tar"
    with tempfile.TemporaryDirectory(prefix="pb-") as store:  # Podman takes no long path
        podman = ["podman", "--storage-driver=vfs", "--events-backend=none", f"--root={store}/store"]
        podman += [f"--runroot={store}/run", f"--tmpdir={store}/tmp"]
        for order in (
            ["build", "--isolation=chroot", "--tag=one", str(tmp_path / "context")],
            ["save", "--format=oci-archive", f"--output={archive}", "one"],
        ):
            done = subprocess.run([*podman, *order], check=False, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
    box = create(template=f"oci-archive:{archive}")
    assert box.exec(["/busybox", "ls", "-l", "/proc/self/exe"]).stdout.endswith("-> /busybox\n")
    with box.files.watch("/workspace") as changes:
        box.files.write("/workspace/file", b"content")
        assert any(change.path == "/workspace/file" for change, _ in zip(changes, range(9), strict=False))
    assert box.files.read("/workspace/file") == b"content"
    assert [match.line for match in box.files.grep("cont", "/workspace")] == ["content"]
    process = box.start(["/busybox", "sleep", "600"], background=True)
    process.kill()
    assert process.wait().signal == 9
    box.files.download("/workspace", tmp_path / "copy")
    assert (tmp_path / "copy/file").read_bytes() == b"content"
