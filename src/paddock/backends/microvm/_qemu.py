"""QEMU: where it is, which one it is, and how a machine is described to it."""

from __future__ import annotations

import math
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from paddock.errors import NotConfigured

PACKAGES = "apt-get install --no-install-recommends qemu-system-x86 e2fsprogs"
PROGRAM = Path("/usr/bin/qemu-system-x86_64")
_VERSION = re.compile(r"version (\d+)\.(\d+)\.(\d+)")
_OLDEST = (7, 0, 0)
_SECONDS = 30
STATE, MEMORY, DISK, VIEW, TABLE = (f"/vm/{name}" for name in ("state", "ram", "disk", "view", "table"))
PORTS = ("init", "user", "root", "files")
_KERNEL_ARGUMENTS = "console=ttyS0 quiet loglevel=3 panic=-1 tsc=reliable no_timer_check random.trust_cpu=on rdinit="
# Descriptors of QEMU's that the pilot makes: the identities' streams follow each other in the order of PORTS.
FIRST_PORT, FILES, MONITOR, BLOCKS = 3, 6, 7, 8


@dataclass(frozen=True)
class Qemu:
    program: Path
    version: str

    @property
    def stamp(self) -> str:
        info = self.program.stat()
        return f"{self.version} {info.st_size} {info.st_mtime_ns}"


def find(program: Path = PROGRAM) -> Qemu:
    """NotConfigured: none, or too old."""
    if not os.access(program, os.X_OK):
        raise NotConfigured(f"{program} is not there", hint=PACKAGES)
    info = program.stat()
    return _ask(program, info.st_size, info.st_mtime_ns)


@cache
def _ask(program: Path, size: int, mtime_ns: int) -> Qemu:
    done = subprocess.run(
        [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False, env={}
    )
    found = _VERSION.search(done.stdout.decode(errors="replace"))
    if found is None:
        raise NotConfigured(f"{program} does not say which version it is", hint=PACKAGES)
    if tuple(map(int, found.groups())) < _OLDEST:
        raise NotConfigured(f"{program} is {found[0]}: 7.0 or later is needed", hint="a newer distribution")
    return Qemu(program, ".".join(found.groups()))


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What must be the same when a machine is made and when its state is loaded."""

    memory_mib: int
    processors: int
    accelerator: str

    def command(self, qemu: Qemu, boot: tuple[str, str] | None, arguments: tuple[str, ...] = ()) -> tuple[str, ...]:
        """`boot`: kernel and initial root directory; None: it waits for the pilot to load a state."""
        start = (
            ("-incoming", "defer")
            if boot is None
            else ("-kernel", boot[0], "-initrd", boot[1], "-append", _kernel_arguments(arguments))
        )
        return (
            str(qemu.program),
            *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
            *("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"),
            *("-machine", "q35,memory-backend=ram,vmport=off,smm=off,sata=off,smbus=off,usb=off,i8042=off,hpet=off"),
            *("-accel", "tcg,thread=multi,tb-size=128" if self.accelerator == "tcg" else self.accelerator),
            *("-cpu", "max" if self.accelerator == "tcg" else "host", "-smp", str(self.processors)),
            *("-m", str(self.memory_mib)),
            *("-object", f"memory-backend-file,id=ram,size={self.memory_mib}M,mem-path={MEMORY},share=on"),
            *("-chardev", f"socket,id=monitor,fd={MONITOR}", "-mon", "chardev=monitor,mode=control"),
            *("-chardev", "file,id=console,path=/dev/stderr", "-device", "isa-serial,chardev=console"),
            *_disk("view", f"driver=nbd,server.type=fd,server.str={BLOCKS},read-only=on"),
            *_disk("disk", f"driver=file,filename={DISK},discard=unmap,cache.no-flush=on,locking=off"),
            *("-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng"),
            *("-netdev", "user,id=net,ipv6=off", "-device", "virtio-net-pci,netdev=net,romfile="),
            *("-device", f"virtio-serial-pci,max_ports={len(PORTS) + 1}"),
            *(part for number, name in enumerate(PORTS) for part in _port(FIRST_PORT + number, name)),
            *start,
        )


def streams() -> Mapping[str, int]:
    """The descriptors of QEMU's that lead to the guest's identities."""
    return {name: FIRST_PORT + number for number, name in enumerate(PORTS) if name != "files"}


def _disk(name: str, description: str) -> tuple[str, ...]:
    read_only = ",read-only=on" if "read-only" in description else ""
    return (
        *("-blockdev", f"{description},node-name={name}-file"),
        *("-blockdev", f"driver=raw,file={name}-file,node-name={name}{read_only}"),
        *("-device", f"virtio-blk-pci,drive={name},serial={name}"),
    )


def _port(fd: int, name: str) -> tuple[str, ...]:
    device = f"virtserialport,chardev={name},name=paddock.{name}"
    return ("-chardev", f"socket,id={name},fd={fd}", "-device", device)


def _kernel_arguments(arguments: tuple[str, ...]) -> str:
    return f"{_KERNEL_ARGUMENTS}{arguments[0]} -- {' '.join(arguments[1:])}"


def processors(cpus: float) -> int:
    return max(1, min(math.ceil(cpus), os.cpu_count() or 1))
