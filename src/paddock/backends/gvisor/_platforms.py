"""Platforms: the ways in which a sentry intercepts programs, and the order in which paddock tries them.

KVM is the fastest on a physical machine. In a virtual one each step is one of two machines, and systrap is faster, as
gVisor's documentation says. There `/dev/kvm` often exists and runs nothing. So paddock tries KVM by default only on a
physical machine, and by name anywhere. Only a sandbox's whole life proves that it works, so paddock tries it after
another platform works (`_proof`).
"""

from __future__ import annotations

from paddock.backends.vmm import kvm
from paddock.linux import proc

SETTING = "gvisor_platform"
KVM, SYSTRAP, PTRACE = "kvm", "systrap", "ptrace"
_SYSTRAP_SINCE = 20230501


def device(platform: str) -> str | None:
    """Which of the host's it drives, as a path."""
    return str(kvm.DEVICE) if platform == KVM else None


def without_device(date: int, name: str | None) -> tuple[str, ...] | str:
    """Return the platforms of a runsc of `date` without a device, the best first, or why the requested `name` isn't
    available.
    """
    own = (SYSTRAP, PTRACE) if date >= _SYSTRAP_SINCE else (PTRACE,)
    if name == KVM and (why := why_not_kvm(name)) is not None:
        return f"{SETTING} is {KVM!r}, and {why}"
    if name in (None, KVM):
        return own
    return (name,) if name in own else f"{SETTING} is {name!r}, which this runsc does not have yet"


def why_not_kvm(name: str | None) -> str | None:
    """Return why paddock doesn't try KVM if the setting is `name`, or None if it does."""
    if name not in (None, KVM):
        return f"{SETTING} says so"
    if (closed := kvm.closed()) is not None:
        return closed
    if not name and _virtual():
        return f"this machine is a virtual one itself, where {SYSTRAP} is faster ({SETTING} = {KVM!r} has it tried)"
    return None


def facts(name: str | None) -> tuple[str, ...]:
    """Return the inputs of that choice. Whether KVM works depends on this boot of the host."""
    return name or "", "" if why_not_kvm(name) is not None else proc.boot_id()


def _virtual() -> bool:
    """Tell whether this machine is virtual, or it isn't known.

    A hypervisor shows itself by a flag of an x86 processor (CPUID, leaf 1, ECX bit 31).
    """
    return "hypervisor" in kvm.processor().get("flags", "hypervisor").split()
