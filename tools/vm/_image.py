"""The machine's disk: a small Debian with systemd and both of its kernels, made once by mmdebstrap."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

SUITE = "bookworm"  # its Python is 3.11, the oldest that we run on
KERNELS = {"6.1": "linux-image-cloud-amd64", "6.12": "linux-image-6.12-cloud-amd64"}
_PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "dbus-user-session", "libpam-systemd", "uidmap", "util-linux", "kmod"),
    *("python3", "python3-venv", "btrfs-progs", "procps", "iproute2", "git", "file"),
    *("qemu-system-x86", "e2fsprogs"),
)
_TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
}
_SIZE = "6G"  # sparse
_INSIDE = Path(__file__).with_name("inside.py")
# The machine runs this after its boot. The tests are on its second disk.
_UNIT = """\
[Unit]
Description=the tests
After=systemd-user-sessions.service user@1000.service dbus.service
[Service]
Type=oneshot
ExecStart=/usr/bin/python3 -I -S /opt/inside.py
StandardOutput=null
StandardError=file:/dev/console
TimeoutStartSec=infinity
[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class Image:
    disk: Path
    boot: Path

    def kernel(self, version: str) -> tuple[Path, Path]:
        """Kernel and initial memory disk of the newest one of this series."""
        found = sorted(self.boot.glob(f"vmlinuz-{version}.*"))
        return found[-1], self.boot / found[-1].name.replace("vmlinuz", "initrd.img")


def missing() -> str | None:
    """None, or why no machine can be made here, with the command that changes it."""
    if os.uname().machine != "x86_64":
        return f"the machine is an x86_64 one, this is {os.uname().machine}"
    absent = sorted(package for tool, package in _TOOLS.items() if shutil.which(tool, path=_path()) is None)
    if absent:
        return f"needs {' and '.join(absent)}: apt-get install --no-install-recommends {' '.join(absent)}"
    if os.geteuid() != 0:
        return "making the machine's disk needs root"
    return None


def _path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def provide(directory: Path) -> Image:
    """Return the image in `directory`, made if there is none of these packages; some minutes and 1.5 GB."""
    made_of = hashlib.sha256(" ".join((SUITE, *_PACKAGES, *KERNELS.values())).encode()).hexdigest()[:8]
    image = Image(disk=directory / f"disk-{made_of}.ext4", boot=directory / "boot")
    if not image.disk.exists():
        print("making the machine's disk by mmdebstrap, once", file=sys.stderr, flush=True)
        _make(image, directory)
    (directory / "inside.py").write_bytes(_INSIDE.read_bytes())
    return image


def _make(image: Image, directory: Path) -> None:
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        root, unfinished = Path(scratch, "root"), Path(scratch, "disk")
        packages = ",".join([*_PACKAGES, *KERNELS.values()])
        source = "/etc/apt/sources.list.d/debian.sources"
        sources = [source] if Path(source).exists() else []
        subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", SUITE, str(root), *sources],
            check=True,
        )
        _settle(root)
        shutil.rmtree(image.boot, ignore_errors=True)
        shutil.copytree(root / "boot", image.boot, symlinks=True)
        subprocess.run(
            ["mke2fs", "-q", "-t", "ext4", "-d", str(root), str(unfinished), _SIZE], check=True, env={"PATH": _path()}
        )
        unfinished.rename(image.disk)


def _settle(root: Path) -> None:
    """Make a user with subordinate ids whose service manager runs from boot on, and the unit that runs the tests."""
    subprocess.run(["chroot", root, "useradd", "--create-home", "--shell", "/bin/bash", "tester"], check=True)
    linger = root / "var/lib/systemd/linger"
    linger.mkdir(parents=True, exist_ok=True)
    (linger / "tester").touch()
    (root / "etc/systemd/system/tests.service").write_text(_UNIT)
    wants = root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
    (wants / "tests.service").symlink_to("/etc/systemd/system/tests.service")
    (root / "etc/systemd/system/serial-getty@ttyS0.service").symlink_to("/dev/null")
    (root / "etc/fstab").write_text("")
    (root / "etc/hostname").write_text("vm\n")
    # It runs any script of the second disk. So a change of the script needs no new first disk.
    (root / "opt/inside.py").write_text(
        "import tarfile\n"
        "with tarfile.open('/dev/vdb') as tar:\n"
        "    code = tar.extractfile('inside.py').read()\n"
        "exec(compile(code, 'inside.py', 'exec'))\n"
    )
