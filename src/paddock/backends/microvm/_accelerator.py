"""The choice of the accelerator: KVM or emulation.

Only a machine that has booted is proof, and paddock stores the result.

/dev/kvm exists in many places where it boots nothing: in a virtual machine whose host forbids it, it answers every
question and then hangs. So paddock tries KVM with the first machine that it bakes, once for each kernel, QEMU, user and
boot of the host.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

import msgspec

from paddock.backends._findings import recall, remember
from paddock.backends.vmm import kvm
from paddock.linux import proc

KVM, TCG = "kvm", "tcg"
_FILE = "microvm.json"
_MOST_WORDS = 300
_SANDBOX = re.compile(r" of sb_\w+|sandbox sb_\w+ ")
_QEMU_SAID = re.compile(r".*; the last that it said: (?:qemu\S*: )?(?:error: )?(.*?)(?: qemu\S*: .*)?", re.DOTALL)
_NESTED = "in a virtual machine, its host must allow nested virtualization"
_OF_PROCESSOR = ("vendor_id", "cpu family", "model", "stepping", "microcode", "flags")


class AcceleratorChoice(msgspec.Struct, frozen=True):
    """`proven`: a machine has shown it, or nothing else can be had."""

    name: str
    why: str
    proven: bool = True

    @property
    def words(self) -> str:
        if not self.proven:
            return f"KVM is tried with the first machine: {self.why}"
        return f"{'KVM' if self.name == KVM else 'emulated (TCG)'}: {self.why}"


def choose(state_dir: Path, programs: tuple[str, ...], accelerator: str | None = None) -> AcceleratorChoice:
    """Return `accelerator`, or the stored result, or else unproven KVM. `programs`: QEMU and kernel."""
    if accelerator is not None:
        return AcceleratorChoice(accelerator, "config.toml says so")
    if (closed := kvm.closed()) is not None:
        return AcceleratorChoice(TCG, closed)
    found = recall(state_dir / _FILE, AcceleratorChoice, _facts(programs))
    return found or AcceleratorChoice(KVM, f"{kvm.DEVICE} is there", proven=False)


def booted(state_dir: Path, programs: tuple[str, ...]) -> None:
    """Remembers that a machine has run with KVM."""
    remember(state_dir / _FILE, AcceleratorChoice(KVM, "a machine has booted with it"), _facts(programs))


def failed(state_dir: Path, programs: tuple[str, ...], words: str) -> None:
    """Remembers that none has, with KVM, and one has without."""
    said = _QEMU_SAID.fullmatch(words)
    reason = f"QEMU ended: {said[1]}" if said else _SANDBOX.sub("", words)
    why = f"{kvm.DEVICE} is there and boots nothing: {reason[:_MOST_WORDS]} ({_NESTED})"
    remember(state_dir / _FILE, AcceleratorChoice(TCG, why), _facts(programs))


def processor() -> str:
    """Return the host's processor as a machine under KVM sees it: a state only works on that one."""
    fields = kvm.processor()
    known = json.dumps([fields.get(name) for name in _OF_PROCESSOR])
    return f"{fields.get('model name', 'a processor')} {hashlib.sha256(known.encode()).hexdigest()[:8]}"


def _facts(programs: tuple[str, ...]) -> tuple[str, ...]:
    node = kvm.DEVICE.stat()
    mine = "root" if os.getuid() == 0 else "user"
    return (*programs, proc.boot_id(), mine, f"{node.st_mode:o} {node.st_uid} {node.st_gid}")
