"""Baking: paddock boots a machine once for a template and a size, and every such sandbox begins from its state.

The result is a tree of the pool, a layer below the sandboxes' own. `/vm` has the disk, the memory, the devices' state
and the view of the template (`vmm/_erofs.py`). paddock builds it like templates: under a lock, atomically, and under a
digest of all its inputs.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from paddock.backends._trees import directory_owners
from paddock.backends.microvm._kernel import Kernel, initramfs
from paddock.backends.microvm._qemu import BOOT, PLACE, Machine, Qemu
from paddock.model import Limits, Template
from paddock.storage.pool.worker import Worker
from paddock.storage.templates.recipe import Entry, Manifest, Progress, Recipe, of_kit, scratch_of, write_manifest
from paddock.supervisor.plan import Tree

TEMPLATE = f"{PLACE}/template"
_VERSION = "7"
_MIB = 1 << 20
_BLOCK = 4096
_INSTALLED = ("/usr/bin", "/usr/lib", "/usr/lib/x86_64-linux-gnu", "/var/lib/dpkg/status")


@dataclass(frozen=True, kw_only=True)
class Ingredients:
    """The inputs of a bake.

    `host` is the template with the machine's programs. `guest` is the machine's pid 1.

    `whole`: trees have all ids of a system. Otherwise all their files belong to one user. Under KVM also `processor`,
    which the guest sees, and `boot_id`. A new bake after each boot of the host proves that KVM still works.
    """

    kernel: Kernel
    qemu: Qemu
    machine: Machine
    template: Template
    limits: Limits
    host: Template
    whole: bool
    guest: Path
    mkfs: str
    processor: str = ""
    boot_id: str = ""

    @property
    def stamp(self) -> str:
        """Which machine a state is for."""
        accelerator = f"{self.machine.accelerator} on {self.processor}" if self.processor else self.machine.accelerator
        how = f"{accelerator}, {self.machine.processors} processors, {self.machine.memory_mib} MiB"
        return f"{self.qemu.stamp} ({how}, format {_VERSION}) with Linux {self.kernel.stamp}"

    def recipe(self, boot: Callable[[str], None]) -> Recipe:
        """`boot(tree)` has a machine boot in that tree and leave its state there."""
        limits, template = self.limits, self.template
        size = (limits.disk_mib, limits.inodes)
        installed = _installed() if template.host_usr else None
        owners = directory_owners(template)
        built = json.dumps([size, template.layers, installed, self.whole, owners, self.boot_id])
        facts = (_VERSION, self.stamp, _digest(self.guest), *self.host.layers, built)

        def fill(root: int, worker: Worker, progress: Progress) -> None:
            write_manifest(root, worker, self._boot_files())
            boot(scratch_of(recipe.tree))
            worker.do(_remove_boot_files, (root,))

        recipe = of_kit("machine", facts, fill)
        return recipe

    def disks(self) -> dict[str, Any]:
        """Return the controller's orders for the disks."""
        owners = None
        if not self.whole:
            below = sorted(directory_owners(self.template).items(), key=lambda item: -len(item[0]))
            owners = {**dict(below), "/": (0, 0)}
        sources: list[dict[str, Any]] = [{"place": TEMPLATE, "path": "/", "owners": owners}]
        if self.template.host_usr:
            sources.append({"place": "/usr", "path": "/usr", "without": ["local"], "owners": {"/": (0, 0)}})
        options = ("-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0", "-m", "0")
        return {
            "sources": sources,
            "disk_bytes": self.limits.disk_mib * _MIB,
            "format": [self.mkfs, "-q", "-F", "-t", "ext4", *options, "-N", str(self._inodes())],
        }

    def _inodes(self) -> int:
        """No more than there are blocks: their table would not fit on a small disk."""
        return min(self.limits.inodes, self.limits.disk_mib * _MIB // _BLOCK)

    def tree(self) -> Tree:
        """Return the template as the controller sees it."""
        first, *others = self.template.layers
        return Tree(name=first, target=TEMPLATE, writable=False, layers=tuple(others))

    def _boot_files(self) -> Manifest:
        modules = self.kernel.chain(self.qemu.modules)
        return {
            ".": Entry("directory", 0o755),
            "vm": Entry("directory", 0o700),
            "vm/boot": Entry("directory", 0o700),
            "vm/boot/initrd": Entry("file", 0o600, initramfs(self.guest.read_bytes(), modules)),
            "vm/boot/kernel": Entry("file", 0o600, self.kernel.image.read_bytes()),
        }


@cache
def _digest(program: Path) -> str:
    return hashlib.sha256(program.read_bytes()).hexdigest()


def _installed() -> list[int]:
    """Return the times of the last installation of programs on this machine: with another /usr a view would
    have holes.
    """
    return [os.stat(place).st_mtime_ns for place in _INSTALLED if os.path.exists(place)]


def _remove_boot_files(root: int) -> None:
    for path in BOOT:
        os.unlink(path.lstrip("/"), dir_fd=root)
    os.rmdir(os.path.dirname(BOOT[0]).lstrip("/"), dir_fd=root)
