"""The same double, with a machine behind it: QEMU's `microvm`, which like Firecracker's has devices of virtio-mmio that
are found by ACPI, and a vsock of ours (`vsock_device`). It boots what it was told to boot."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, sys.argv[1])

from paddock.guest._kernel import set_parent_death_signal
from tests.guest.firecracker_double import Double, main
from tests.guest.vsock_device import VsockDevice

# Without KVM nothing tells the guest how fast its clock is, as Firecracker's processor does.
CLOCK = "tsc_early_khz=2000000"


class OnQemu(Double):
    def run(self, path: str) -> None:
        told = self.configured
        place = path + ".device"
        self.device = VsockDevice(place, path)
        memory = told["/machine-config"]["mem_size_mib"]
        boot = told["/boot-source"]
        drives = [
            part
            for name, drive in told.items()
            if name.startswith("/drives/")
            for part in (
                *("-drive", f"id={drive['drive_id']},if=none,format=raw,file={drive['path_on_host']},"
                  f"read-only={'on' if drive['is_read_only'] else 'off'}"),
                *("-device", f"virtio-blk-device,drive={drive['drive_id']}"),
            )
        ]  # fmt: skip
        ours, theirs = socket.socketpair()
        command = [
            "qemu-system-x86_64",
            *("-M", "microvm,acpi=on,pit=on,pic=on,rtc=on,memory-backend=ram", "-accel", "tcg", "-cpu", "max"),
            *("-m", str(memory), "-smp", str(told["/machine-config"]["vcpu_count"])),
            *("-object", f"memory-backend-memfd,id=ram,size={memory}M,share=on"),
            *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio"),
            *("-kernel", boot["kernel_image_path"], "-initrd", boot["initrd_path"]),
            *("-append", boot["boot_args"].replace("reboot=k", CLOCK)),
            *drives,
            *("-chardev", f"socket,id=vsock,path={place}", "-device", "vhost-user-vsock-device,chardev=vsock"),
            *("-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-device,rng=rng"),
            *("-chardev", f"socket,id=qmp,fd={theirs.fileno()}", "-mon", "chardev=qmp,mode=control"),
        ]
        self.qemu = subprocess.Popen(
            command,
            env={"PATH": "/usr/bin:/bin"},
            pass_fds=(theirs.fileno(),),
            preexec_fn=lambda: set_parent_death_signal(signal.SIGKILL),
        )
        theirs.close()
        self.qmp = ours.makefile("rw")
        self.qmp.readline()
        self.tell("qmp_capabilities")
        self.state = "Running"

    def tell(self, order: str) -> None:
        self.qmp.write(json.dumps({"execute": order}) + "\n")
        self.qmp.flush()
        while "return" not in json.loads(self.qmp.readline()):
            continue

    def vm(self, body: Any) -> None:
        super().vm(body)
        self.tell("stop" if body["state"] == "Paused" else "cont")

    def snapshot_create(self, body: Any) -> str | None:
        self.device.reset()
        return super().snapshot_create(body)


if __name__ == "__main__":
    os.environ.clear()
    main(OnQemu)
