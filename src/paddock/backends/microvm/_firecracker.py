"""Firecracker: where it is, which one it is, and how a machine is described to it.

Nothing of it ran where this was written: no program of that name and no KVM are there. So it is used only by those who
ask for it. Written against the API document of version 1.17 and docs/vsock.md, docs/snapshotting of
firecracker-microvm/firecracker; what it is told is held against that document in the tests.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from paddock.backends.microvm import _vmlinux
from paddock.backends.microvm._initramfs import ARGUMENTS
from paddock.backends.microvm._kernel import Kernel
from paddock.backends.microvm._vmm import BOOT, PLACE, Machine, kernel_arguments
from paddock.errors import NotConfigured
from paddock.storage._probe import find_tool

OURS = Path("/usr/local/lib/paddock/firecracker")
REMEDY = f"put a release of Firecracker in /usr/local/bin or at {OURS}, or use QEMU (without PADDOCK_VMM)"
_VERSION = re.compile(r"Firecracker v?(\d+)\.(\d+)\.(\d+)")
_OLDEST = (1, 10, 0)
"""ACPI, by which Debian's kernels find devices, is of 1.8; a guest hears of its lost connections since 1.10."""
_SECONDS = 30
_API, _VSOCK = "/tmp/firecracker.api", "/tmp/firecracker.vsock"  # noqa: S108 (the jail's own)
_PORTS = {"init": 1024, "user": 1025, "root": 1026, "files": 1027}
_GUEST = 3  # the first address that a guest may have
_LARGEST_VIEW = 8 << 30


@dataclass(frozen=True)
class Firecracker:
    program: Path
    version: str
    name = "firecracker"
    modules = ("virtio_mmio", "virtio_blk", "vmw_vsock_virtio_transport", "virtio_rng", "erofs", "overlay", "fuse")
    network = False
    emulates = False
    largest_view = _LARGEST_VIEW

    @property
    def edition(self) -> str:
        return f"firecracker {self.version}"

    @property
    def stamp(self) -> str:
        info = self.program.stat()
        return f"Firecracker {self.version} {info.st_size} {info.st_mtime_ns}"

    def kernel(self, kernel: Kernel) -> bytes:
        return _vmlinux.extract(kernel.image)

    def streams(self, identities: Iterable[str]) -> dict[str, str]:
        return {name: f"vsock:{_PORTS[name]}" for name in (*identities, "files")}

    def options(self, machine: Machine, identities: Iterable[str], *, boot: bool) -> dict[str, Any]:
        return {
            "argv": (str(self.program), "--api-sock", _API, "--id", "paddock"),
            "api": _API,
            "vsock": _VSOCK,
            "lines": {name: _PORTS[name] for name in (*identities, "files")},
            "memory_bytes": machine.memory_bytes,
            "largest_view": _LARGEST_VIEW,
            "machine": _description(machine) if boot else {},
        }


def _description(machine: Machine) -> dict[str, Any]:
    """Bodies of the API, by path."""
    kernel, initrd = BOOT
    return {
        "/machine-config": {"vcpu_count": machine.processors, "mem_size_mib": machine.memory_mib},
        "/boot-source": {
            "kernel_image_path": kernel,
            "initrd_path": initrd,
            "boot_args": f"reboot=k {kernel_arguments(ARGUMENTS)}",
        },
        "/drives/view": _drive("view", read_only=True),
        "/drives/disk": _drive("disk", read_only=False),
        "/vsock": {"guest_cid": _GUEST, "uds_path": _VSOCK},
        "/entropy": {},
    }


def _drive(name: str, *, read_only: bool) -> dict[str, Any]:
    path = f"{PLACE}/{name}"
    return {"drive_id": name, "path_on_host": path, "is_root_device": False, "is_read_only": read_only}


def find() -> Firecracker:
    """NotConfigured: none, or too old."""
    given = OURS if os.access(OURS, os.X_OK) else find_tool("firecracker")
    if given is None:
        raise NotConfigured("there is no firecracker here", hint=REMEDY)
    program = Path(given).resolve()
    info = program.stat()
    return _ask(program, info.st_size, info.st_mtime_ns)


@cache
def _ask(program: Path, size: int, mtime_ns: int) -> Firecracker:
    done = subprocess.run(
        [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False, env={}
    )
    found = _VERSION.search(done.stdout.decode(errors="replace"))
    if found is None:
        raise NotConfigured(f"{program} does not say which version it is", hint=REMEDY)
    if tuple(map(int, found.groups())) < _OLDEST:
        raise NotConfigured(f"{program} is {found[0]}: 1.10 or later is needed", hint=REMEDY)
    return Firecracker(program, ".".join(found.groups()))
