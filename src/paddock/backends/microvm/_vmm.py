"""What runs a virtual machine, as creating and baking see it. What the pilot does with it is `guest/_vmm_<name>.py`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from paddock.backends.microvm._kernel import Kernel

PLACE = "/vm"
BOOT = (f"{PLACE}/boot/kernel", f"{PLACE}/boot/initrd")
_MIB = 1 << 20
_KERNEL_ARGUMENTS = "console=ttyS0 quiet loglevel=3 panic=-1 tsc=reliable no_timer_check random.trust_cpu=on rdinit="


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What must be the same when a machine is made and when its state is loaded."""

    memory_mib: int
    processors: int
    accelerator: str

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib * _MIB


class Vmm(Protocol):
    @property
    def name(self) -> str:
        """That of the pilot's module."""
        ...

    @property
    def edition(self) -> str:
        """Name and version, for people."""
        ...

    @property
    def stamp(self) -> str:
        """Which one it is, to the byte: a state is for that one only."""
        ...

    @property
    def modules(self) -> tuple[str, ...]:
        """Of the kernel, which the guest loads."""
        ...

    @property
    def network(self) -> bool:
        """Whether a machine can have a way out."""
        ...

    @property
    def emulates(self) -> bool:
        """Whether it runs machines where there is no KVM."""
        ...

    @property
    def largest_view(self) -> int:
        """In bytes, where a view is copied into one file; 0: it is read where its files lie."""
        ...

    def kernel(self, kernel: Kernel) -> bytes:
        """The image that it boots. NotConfigured: there is no such image in that kernel."""
        ...

    def streams(self, identities: Iterable[str]) -> dict[str, str]:
        """Where the guest finds its lines, and `files`."""
        ...

    def options(self, machine: Machine, identities: Iterable[str], *, boot: bool) -> dict[str, Any]:
        """What its module in the pilot is told, beside what every course is."""
        ...


def kernel_arguments(arguments: tuple[str, ...]) -> str:
    return f"{_KERNEL_ARGUMENTS}{arguments[0]} -- {' '.join(arguments[1:])}"


def processors(cpus: float) -> int:
    return max(1, min(math.ceil(cpus), os.cpu_count() or 1))
