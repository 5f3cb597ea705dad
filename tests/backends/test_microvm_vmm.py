"""Which program runs virtual machines, what is not to be had with it, and the kernel that it boots."""

from __future__ import annotations

import asyncio
import gzip
import lzma
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from paddock.backends.microvm import MicrovmBackend, _accelerator, _firecracker, _kernel, _qemu, _selection, _vmlinux
from paddock.errors import NotConfigured, PaddockError, Unsupported
from paddock.model import SandboxId

KERNEL = b"\x7fELF" + b"kernel " * 1000 + bytes(300)


def packed_lz4(data: bytes) -> bytes:
    """Blocks of literals; the second begins with a match that reaches into the first and into itself."""
    first, rest = data[:5000], data[5000:]
    assert rest[:140] == (first[-7:] * 20), "what follows repeats the last seven bytes"
    literals = _sequence(first)
    match = bytes([0x0F, 7, 0, 140 - 4 - 15]) + _sequence(rest[140:])
    return b"\x02\x21\x4c\x18" + b"".join(struct.pack("<I", len(block)) + block for block in (literals, match))


def _sequence(literals: bytes) -> bytes:
    over = len(literals) - 15
    return b"\xf0" + b"\xff" * (over // 255) + bytes([over % 255]) + literals


def image(payload: bytes, *, length: int | None = len(KERNEL)) -> bytes:
    """As boot.rst has it: two sectors of setup, then code, then the payload."""
    data = bytearray(3 * 512 + 100)
    data[0x1F1] = 2
    data[0x202:0x206] = b"HdrS"
    tail = b"" if length is None else struct.pack("<I", length)
    struct.pack_into("<II", data, 0x248, 100, len(payload + tail))
    return bytes(data) + payload + tail


PACKED: dict[str, Callable[[], bytes]] = {
    "lz4": lambda: image(packed_lz4(KERNEL)),
    "gzip": lambda: image(gzip.compress(KERNEL), length=None),
    "xz": lambda: image(lzma.compress(KERNEL)),
    "none": lambda: KERNEL,
}


@pytest.mark.parametrize("kind", PACKED)
def test_the_kernel_comes_out_of_its_image_however_it_was_packed(tmp_path: Path, kind: str) -> None:
    (tmp_path / "image").write_bytes(PACKED[kind]())
    assert _vmlinux.extract(tmp_path / "image") == KERNEL


@pytest.mark.skipif(shutil.which("zstd") is None, reason="this machine has no zstd")
def test_one_that_is_packed_with_zstandard_is_unpacked_by_its_program(tmp_path: Path) -> None:
    payload = subprocess.run(["zstd", "-c"], input=KERNEL, capture_output=True, check=True).stdout
    (tmp_path / "image").write_bytes(image(payload))
    assert _vmlinux.extract(tmp_path / "image") == KERNEL


WRONG: dict[str, tuple[bytes, str]] = {
    "no image": (bytes(4096), "no kernel for x86"),
    "another packing": (image(b"BZh9" + KERNEL), "begins with 425a6839"),
    "cut short": (image(packed_lz4(KERNEL)[:-3000]), "cut short"),
    "back to nothing": (image(b"\x02\x21\x4c\x18" + struct.pack("<I", 8) + b"\x0f\x07\x00\x00\x10aaa"), "not there"),
    "another length": (image(lzma.compress(KERNEL), length=5), "should have 5"),
    "no kernel": (image(gzip.compress(b"text")), "is no kernel"),
    "broken": (image(b"\x1f\x8b" + bytes(100)), "cannot be unpacked"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_kernel_is_refused_with_a_sentence(tmp_path: Path, what: str) -> None:
    data, said = WRONG[what]
    (tmp_path / "image").write_bytes(data)
    with pytest.raises(NotConfigured, match=said):
        _vmlinux.extract(tmp_path / "image")


def test_the_kernel_that_is_here_can_be_unpacked_and_has_what_firecracker_shows_it() -> None:
    try:
        kernel = _kernel.find()
    except NotConfigured as error:
        pytest.skip(error.message)
    data = _vmlinux.extract(kernel.image)
    assert data[:5] == b"\x7fELF\x02"
    assert len(data) > kernel.image.stat().st_size
    assert b"Xen\0" in data  # the note with its entry for those who load it directly
    loaded = {path.stem for path in kernel.chain(_firecracker.Firecracker.modules)}
    assert {"virtio_mmio", "vmw_vsock_virtio_transport", "virtio_blk", "erofs", "overlay"} <= loaded


# which one


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of that name, which says a version and nothing else."""
    path = tmp_path / "bin" / "firecracker"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\necho Firecracker v1.13.1\n")
    path.chmod(0o755)
    monkeypatch.setattr(_firecracker, "OURS", path)
    return path


@pytest.mark.parametrize("path", [".", "", "bin", "{}/bin"])
def test_a_program_that_a_repository_brings_is_not_run(
    program: Path, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has `.` or `bin` in PATH and asks `doctor` in a hostile directory."""
    monkeypatch.setattr(_firecracker, "OURS", tmp_path / "none")
    for place in (tmp_path, program.parent):
        for name in ("firecracker", "zstd"):
            (place / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran; echo Firecracker v1.13.1\n")
            (place / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{path.format(tmp_path)}:{os.environ['PATH']}")
    if shutil.which("firecracker", path="/usr/local/bin:/usr/bin") is None:
        with pytest.raises(NotConfigured, match="no firecracker here"):
            _firecracker.find()
    (tmp_path / "image").write_bytes(image(b"\x28\xb5\x2f\xfd" + KERNEL))
    with pytest.raises(NotConfigured):
        _vmlinux.extract(tmp_path / "image")
    assert not (tmp_path / "ran").exists()


def test_it_is_qemu_until_somebody_asks_for_another(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_qemu, "find", lambda: _qemu.Qemu(program, "7.2.0"))
    monkeypatch.delenv("PADDOCK_VMM", raising=False)
    assert _selection.vmm().name == "qemu"
    assert "firecracker 1.13.1 is here, too" in _selection.words()
    monkeypatch.setenv("PADDOCK_VMM", "firecracker")
    found = _selection.vmm()
    assert (found.name, found.edition, found.network) == ("firecracker", "firecracker 1.13.1", False)
    assert _selection.words() == "PADDOCK_VMM says so"
    monkeypatch.setenv("PADDOCK_VMM", "bochs")
    with pytest.raises(NotConfigured, match="bochs"):
        _selection.vmm()


@pytest.mark.parametrize(
    ("says", "said"), [("Firecracker v1.9.4", "1.10 or later"), ("Fire", "does not say which version")]
)
def test_one_that_is_too_old_is_refused(
    program: Path, says: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.write_text(f"#!/bin/sh\necho {says}\n")
    monkeypatch.setenv("PADDOCK_VMM", "firecracker")
    with pytest.raises(NotConfigured, match=said):
        _selection.vmm()
    assert said in (MicrovmBackend(tmp_path).probe() or "")


def test_without_the_program_the_level_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_firecracker, "OURS", tmp_path / "none")
    monkeypatch.setattr(_firecracker, "find_tool", dict[str, str]().get)
    monkeypatch.setenv("PADDOCK_VMM", "firecracker")
    check = MicrovmBackend(tmp_path).checks()[0]
    assert check.status == "missing"
    assert "there is no firecracker here" in check.detail
    assert check.fix is not None
    assert "PADDOCK_VMM" in check.fix


def test_it_is_not_emulated_and_gives_no_way_out(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PADDOCK_VMM", "firecracker")
    monkeypatch.setenv(_accelerator.SETTING, "tcg")
    backend = MicrovmBackend(tmp_path)
    assert not backend.capabilities.exits
    with pytest.raises(Unsupported, match="no way out"):
        asyncio.run(backend.exits(SandboxId("sb_0000000000000000"), 0, make=True))
    with pytest.raises(PaddockError, match="runs machines on KVM only; here, emulated"):
        backend._accelerator()  # pyright: ignore[reportPrivateUsage]
    monkeypatch.delenv("PADDOCK_VMM")
    assert backend.capabilities.exits
