"""An emulated machine of the other architecture that runs one Python program: a kernel of Debian's, its Python, QEMU.

Its disk holds Debian's Python and git, Busybox, and what is installed for the program. `qemu-user` won't do in its
place: 7.2 has no openat2(2), and 10.0 leaves out fields of /proc/self/stat.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

from paddock.backends.microvm._kernel import Kernel, find

KIT = Path("/usr/local/lib/paddock/aarch64")
PROGRAM = Path("/usr/bin/qemu-system-aarch64")
SITE = "site"
"""A directory of its disk, on the path of its Python."""
_MERGED = ("bin", "lib", "sbin")
_LEFT_OUT = shutil.ignore_patterns("boot", "modules", "doc", "man", "perl*", "locale", "__pycache__")
_EMPTY = ("dev", "home", "mnt", "opt", "proc", "root", "run", "srv", "sys", "tmp", "usr/local")
_MODULES = ("virtio_pci", "virtio_blk", "ext4", "overlay")
_BEGIN, _END = "the program begins", "the program ended with "
_INIT = f"""#!/bin/busybox sh
export PATH=/usr/bin:/usr/sbin HOME=/root PYTHONPATH=/{SITE}
for each in proc:proc sysfs:sys devtmpfs:dev tmpfs:tmp tmpfs:run cgroup2:sys/fs/cgroup; do
    mount -t ${{each%:*}} none /${{each#*:}}
done
mkdir /dev/pts /dev/shm
mount -t devpts none /dev/pts
busybox ifconfig lo up
echo {_BEGIN}
python3 -W error /program.py 2>&1
echo "{_END}$?"
busybox poweroff -f
"""


def missing() -> bool:
    return not (PROGRAM.exists() and (KIT / "usr/bin/python3").is_symlink())


def python() -> str:
    """Return the version of its Python: "3.11"."""
    return os.readlink(KIT / "usr/bin/python3").removeprefix("python")


def run(place: Path, site: Path, program: str) -> tuple[int, str]:
    """Boot a machine that has `site` and runs `program` as root. Return its exit code and output."""
    kernel = find(places=(KIT,))
    (place / "initramfs").write_bytes(b"".join(_initramfs(kernel)))
    _lay_out(place / "root", site, program)
    disk = place / "disk"
    subprocess.run(["/usr/sbin/mke2fs", "-q", "-t", "ext4", "-m", "0", "-d", place / "root", disk, "600M"], check=True)
    argv = [PROGRAM, "-M", "virt", "-cpu", "cortex-a57", "-accel", "tcg", "-smp", "2", "-m", "1024"]
    argv += ["-kernel", kernel.image, "-initrd", place / "initramfs", "-append", "console=ttyAMA0 quiet loglevel=3"]
    argv += ["-drive", f"file={disk},format=raw,if=none,id=disk", "-device", "virtio-blk-pci,drive=disk"]
    argv += ["-nographic", "-no-reboot", "-nic", "none"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True)
    _, begun, rest = done.stdout.partition(f"{_BEGIN}\n")
    output, ended, code = rest.partition(_END)
    assert begun, done.stdout
    assert ended, done.stdout
    return int(code.split()[0]), output


def _lay_out(root: Path, site: Path, program: str) -> None:
    shutil.copytree(KIT, root, symlinks=True, ignore=_LEFT_OUT)
    for name in _MERGED:  # as Debian's installer makes them, before any package
        shutil.copytree(root / name, root / "usr" / name, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(root / name)
        (root / name).symlink_to(f"usr/{name}")
    for name in _EMPTY:
        (root / name).mkdir(exist_ok=True)
    for name in ("cat", "mkdir", "mount", "sh"):
        (root / "usr/bin" / name).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    shutil.copytree(site, root / SITE, symlinks=True)
    (root / "program.py").write_text(program)
    (root / "init").write_text(_INIT)
    (root / "init").chmod(0o755)


def _initramfs(kernel: Kernel) -> Iterator[bytes]:
    """Yield records of newc (Linux, Documentation/driver-api/early-userspace/buffer-format.rst): it mounts the disk."""
    modules = kernel.chain(_MODULES)
    steps = [*(f"insmod /{number}" for number in range(len(modules))), "mount -t devtmpfs none /dev"]
    steps += ["mount -t ext4 /dev/vda /root"]
    script = "\n".join(
        ("#!/busybox sh", *(f"/busybox {step}" for step in steps), "exec /busybox switch_root /root /init\n")
    )
    yield _record("dev", stat.S_IFDIR | 0o755)
    yield _record("root", stat.S_IFDIR | 0o755)
    yield _record("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
    yield _record("busybox", stat.S_IFREG | 0o755, (KIT / "bin/busybox").read_bytes())
    yield _record("init", stat.S_IFREG | 0o755, script.encode())
    for number, module in enumerate(modules):
        yield _record(str(number), stat.S_IFREG | 0o644, module)
    yield _record("TRAILER!!!", 0)


def _record(path: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)) -> bytes:
    name = path.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(name), 0)
    head = b"070701" + b"".join(b"%08X" % value for value in fields) + name
    return head + bytes(-len(head) % 4) + content + bytes(-len(content) % 4)
