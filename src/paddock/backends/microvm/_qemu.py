"""QEMU: its path, its version, and the command line of a machine."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from paddock.backends.microvm._kernel import PROGRAM as PID_1
from paddock.errors import NotConfiguredError
from paddock.linux.seccomp import ALLOW, AUDIT_ARCH, NOTIFY, Case, Cases, Compare, compile
from paddock.linux.syscall_names import numbers

PLACE = "/vm"
BOOT = (f"{PLACE}/boot/kernel", f"{PLACE}/boot/initrd")
PACKAGES = "apt-get install --no-install-recommends qemu-system-x86 e2fsprogs"
PROGRAM = Path("/usr/bin/qemu-system-x86_64")
_VERSION = re.compile(r"version (\d+)\.(\d+)\.(\d+)")
_OLDEST = (7, 1, 0)
_SECONDS = 30
_MIB = 1 << 20
_KERNEL_ARGUMENTS = (
    "console=ttyS0 quiet loglevel=3 panic=-1 tsc=reliable no_timer_check random.trust_cpu=on rdinit=" + PID_1
)
_MEMORY, _DISK = f"{PLACE}/ram", f"{PLACE}/disk"
_PORTS = ("line", "files")
# Descriptors of QEMU's that the controller makes: the ports' follow each other in the order of _PORTS.
_FIRST_PORT, _FILES, _MONITOR, _BLOCKS = 3, 4, 5, 6


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The properties that a machine and a load of its state must share."""

    memory_mib: int
    processors: int
    accelerator: str

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib * _MIB


@dataclass(frozen=True)
class Qemu:
    program: Path
    version: str
    modules = ("virtio_pci", "virtio_blk", "virtio_console", "virtio_net", "virtio_rng", "erofs", "overlay", "fuse")

    @property
    def stamp(self) -> str:
        """Which one it is, to the byte: a state is for that one only."""
        info = self.program.stat()
        return f"QEMU {self.version} {info.st_size} {info.st_mtime_ns}"

    def options(self, machine: Machine, *, boot: bool) -> dict[str, Any]:
        """Return the controller's options for it, beside the ones of every driver."""
        return {
            "argv": self.command(machine, boot=boot),
            "streams": {"line": _FIRST_PORT},
            "descriptors": {"files": _FILES, "monitor": _MONITOR, "blocks": _BLOCKS},
            "memory_bytes": machine.memory_bytes,
            "opens": opens(),
        }

    def command(self, machine: Machine, *, boot: bool) -> tuple[str, ...]:
        """Return the command line of a machine that boots, or waits for the controller to load a state."""
        kernel, initrd = BOOT
        mapped = "share=on" if boot else "share=off,reserve=off"
        start = (
            ("-kernel", kernel, "-initrd", initrd, "-append", _KERNEL_ARGUMENTS)
            if boot
            else ("-S", "-incoming", "defer")
        )
        tcg = machine.accelerator == "tcg"
        return (
            str(self.program),
            *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
            *("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"),
            *("-machine", "q35,memory-backend=ram,vmport=off,smm=off,sata=off,smbus=off,usb=off,i8042=off,hpet=off"),
            *("-accel", "tcg,thread=multi,tb-size=128" if tcg else machine.accelerator),
            *("-cpu", "max" if tcg else "host", "-smp", str(machine.processors)),
            *("-m", str(machine.memory_mib)),
            *("-object", f"memory-backend-file,id=ram,size={machine.memory_mib}M,mem-path={_MEMORY},{mapped}"),
            # Each thread has a stack of 8 MiB, and there may be 64: where only RLIMIT_DATA keeps the limit, machines
            # died of it ("qemu_memalign: failed to allocate").
            *("-object", "main-loop,id=loop,thread-pool-max=8"),
            # A state is that of the devices alone, and says nothing of memory.
            *("-machine", "suppress-vmdesc=on", "-global", "migration.send-configuration=off"),
            *("-chardev", f"socket,id=monitor,fd={_MONITOR}", "-mon", "chardev=monitor,mode=control"),
            *("-chardev", "file,id=console,path=/dev/stderr", "-device", "isa-serial,chardev=console"),
            *_disk("view", f"driver=nbd,server.type=fd,server.str={_BLOCKS},read-only=on"),
            *_disk("disk", f"driver=file,filename={_DISK},discard=unmap,cache.no-flush=on,locking=off"),
            *("-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng"),
            *("-netdev", "user,id=net,ipv6=off", "-device", "virtio-net-pci,netdev=net,romfile=,guest_announce=off"),
            *("-device", f"virtio-serial-pci,max_ports={len(_PORTS) + 1}"),
            *(part for number, name in enumerate(_PORTS) for part in _port(_FIRST_PORT + number, name)),
            *start,
        )


def opens() -> str:
    """Return a filter, in hexadecimal, that notifies its listener of each open for reading and writing."""
    writes = Case((Compare(2, os.O_RDWR, os.O_ACCMODE),), NOTIFY)
    return compile(AUDIT_ARCH["x86_64"], {numbers("x86_64")["openat"]: Cases((writes,), ALLOW)}, ALLOW).hex()


def find(program: Path = PROGRAM) -> Qemu:
    """NotConfiguredError: none, or too old."""
    if not os.access(program, os.X_OK):
        raise NotConfiguredError(f"{program} is not there", hint=PACKAGES)
    info = program.stat()
    return _ask(program, info.st_size, info.st_mtime_ns)


@cache
def _ask(program: Path, size: int, mtime_ns: int) -> Qemu:
    done = subprocess.run(
        [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False, env={}
    )
    found = _VERSION.search(done.stdout.decode(errors="replace"))
    if found is None:
        raise NotConfiguredError(f"{program} does not say which version it is", hint=PACKAGES)
    if tuple(map(int, found.groups())) < _OLDEST:
        raise NotConfiguredError(f"{program} is {found[0]}: 7.1 or later is needed", hint="a newer distribution")
    return Qemu(program, ".".join(found.groups()))


def _disk(name: str, description: str) -> tuple[str, ...]:
    read_only = ",read-only=on" if "read-only" in description else ""
    return (
        *("-blockdev", f"{description},node-name={name}-file"),
        *("-blockdev", f"driver=raw,file={name}-file,node-name={name}{read_only}"),
        *("-device", f"virtio-blk-pci,drive={name}"),
    )


def _port(fd: int, name: str) -> tuple[str, ...]:
    device = f"virtserialport,chardev={name},name=paddock.{name}"
    return ("-chardev", f"socket,id={name},fd={fd}", "-device", device)
