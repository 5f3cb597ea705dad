"""Starting the machine with a checkout and a job on its second disk, and getting what it wrote on its third."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paddock.backends.guest import program
from paddock.backends.guest._program import shipped
from tools.vm._image import Image

_RESULTS_BYTES = 64 << 20
_ARGUMENTS = (
    "root=/dev/vda rw console=ttyS0 quiet panic=-1 systemd.unified_cgroup_hierarchy=1 systemd.show_status=0"
    " no_timer_check"  # an emulated one is late where the host is busy, and the kernel would give up
)


class Machine:
    def __init__(self, image: Image, *, kernel: str, accelerator: str, memory_mib: int, nests: bool = False) -> None:
        """`nests`: the processor has AMD's virtualization, so that the machine has a /dev/kvm."""
        self._image = image
        self._kernel, self._initrd = image.kernel(kernel)
        self._accelerator = accelerator
        self._memory_mib = memory_mib
        # Emulated, a second processor costs a nested guest more than it brings.
        self._processor = ("-cpu", "max,+svm", "-smp", "1") if nests else ("-cpu", "max", "-smp", "2")

    def run(
        self, checkout: Path, job: dict[str, Any], results: Path, *, beside: Sequence[Path] = (), timeout_seconds: float
    ) -> None:
        """Boot, do the job, and leave its files in `results`. Forget the rest of its disk.

        `beside`: files that the job finds next to the checkout.
        """
        with tempfile.TemporaryDirectory(prefix="paddock-vm-") as directory:
            scratch = Path(directory)
            _pack(checkout, job, beside, scratch / "input.tar")
            with (scratch / "results.tar").open("wb") as file:
                file.truncate(_RESULTS_BYTES)
            command = self._command(scratch)
            try:
                subprocess.run(command, stdin=subprocess.DEVNULL, check=True, timeout=timeout_seconds)
            except subprocess.TimeoutExpired:
                print(f"not done within {timeout_seconds:.0f} s", file=sys.stderr)
            shutil.rmtree(results, ignore_errors=True)
            results.mkdir(parents=True)
            try:
                with tarfile.open(scratch / "results.tar") as tar:
                    for member in tar:
                        if (file := tar.extractfile(member)) is not None:
                            (results / Path(member.name).name).write_bytes(file.read())
            except tarfile.ReadError:
                print("the machine wrote no results", file=sys.stderr)

    def _command(self, scratch: Path) -> list[str]:
        accelerator = "tcg,thread=multi" if self._accelerator == "tcg" else self._accelerator
        disks = (
            f"file={self._image.disk},snapshot=on",
            f"file={scratch / 'input.tar'},readonly=on",
            f"file={scratch / 'results.tar'}",
        )
        return [
            *("qemu-system-x86_64", "-machine", "q35", "-accel", accelerator, *self._processor),
            *("-m", str(self._memory_mib), "-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot"),
            *(
                "-nic",
                "none",
                "-object",
                "rng-random,id=rng,filename=/dev/urandom",
                "-device",
                "virtio-rng-pci,rng=rng",
            ),
            *("-kernel", str(self._kernel), "-initrd", str(self._initrd), "-append", _ARGUMENTS),
            *(part for disk in disks for part in ("-drive", f"{disk},if=virtio,format=raw")),
        ]


def _pack(checkout: Path, job: dict[str, Any], beside: Sequence[Path], target: Path) -> None:
    """Pack the checkout as git knows it, with changes, its compiled guest, and the packages that it runs with."""
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={checkout}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=checkout,
        check=True,
        capture_output=True,
    )
    packages = next((checkout / ".venv/lib").glob("python3*/site-packages"))
    with tarfile.open(target, "w") as tar:
        _add_text(tar, "inside.py", Path(__file__).with_name("inside.py").read_bytes())
        _add_text(tar, "job.json", json.dumps(job).encode())
        for name in listed.stdout.decode().split("\0"):
            if name and (checkout / name).exists():
                tar.add(checkout / name, f"checkout/{name}")
        tar.add(program(), f"checkout/{shipped().relative_to(checkout)}")  # the machine has no compiler
        tar.add(packages, "packages", filter=_needed)
        for path in beside:
            tar.add(path, path.name)


def _add_text(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _needed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    top = member.name.split("/")[1:2]
    return None if top and top[0].startswith(("pyright", "ruff", "nodeenv", "_editable")) else member
