"""Which program runs virtual machines. QEMU, unless somebody asks for Firecracker: that has not run where this was
made, and gives no way out. What nobody asked for must not change because a program happens to be there."""

from __future__ import annotations

import os

from paddock.backends.microvm import _firecracker, _qemu
from paddock.backends.microvm._vmm import Vmm
from paddock.errors import NotConfigured

SETTING = "PADDOCK_VMM"


def vmm() -> Vmm:
    """NotConfigured: it is not there, or nothing of that name is known."""
    given = os.environ.get(SETTING, "") or "qemu"
    if given == "qemu":
        return _qemu.find()
    if given == "firecracker":
        return _firecracker.find()
    raise NotConfigured(f"{SETTING} is {given!r}", hint=f"{SETTING}=qemu or {SETTING}=firecracker")


def words() -> str:
    """Why it is that one."""
    if os.environ.get(SETTING):
        return f"{SETTING} says so"
    try:
        return f"{_firecracker.find().edition} is here, too ({SETTING}=firecracker; it gives no way out)"
    except NotConfigured:
        return "no Firecracker here"
