"""The reference: what the same isolation costs without paddock.

Mount a private overlay over a minimal root file system, `bwrap --unshare-all … true` in it, unmount,
remove. No limits, no id range, no seccomp, no audit: bubblewrap is asked for the least.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)


class Reference:
    """`cycle()` is one whole life. As an ordinary user there is no overlay: bwrap alone, and `name` says so."""

    def __init__(self, directory: Path) -> None:
        self._bwrap = shutil.which("bwrap")
        if self._bwrap is None:
            raise FileNotFoundError("bwrap is missing; as root: apt-get install bubblewrap")
        self._overlay = os.geteuid() == 0
        self._lower = minimal_root(directory / "rootfs")
        self._place = directory / "reference"
        self.name = "overlay + bwrap --unshare-all true + unmount" if self._overlay else "bwrap --unshare-all true"

    def cycle(self) -> None:
        if not self._overlay:
            self._run(self._lower)
            return
        upper, work, merged = (self._place / name for name in ("upper", "work", "merged"))
        for directory in (upper, work, merged):
            directory.mkdir(parents=True)
        _mount_overlay(self._lower, upper, work, merged)
        try:
            self._run(merged)
        finally:
            _check(_libc.umount2(os.fsencode(merged), 0), "umount")
            shutil.rmtree(self._place)

    def _run(self, root: Path) -> None:
        assert self._bwrap is not None
        argv = [self._bwrap, "--unshare-all", "--bind", str(root), "/", "--proc", "/proc", "--dev", "/dev", "/bin/true"]
        subprocess.run(argv, check=True)


def minimal_root(root: Path) -> Path:
    """`true` with its loader and libraries, and the mount points that bwrap needs."""
    true = shutil.which("true")
    assert true is not None
    linked = subprocess.run(["ldd", true], check=True, capture_output=True, text=True).stdout
    for name in ("proc", "dev", "bin"):
        (root / name).mkdir(parents=True)
    shutil.copy(true, root / "bin/true")
    for library in re.findall(r"(/\S+) \(0x", linked):
        target = root / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    return root


def _mount_overlay(lower: Path, upper: Path, work: Path, merged: Path) -> None:
    # By the system call, not mount(8): the reference is not made to pay for a process that it can do without.
    options = f"lowerdir={lower},upperdir={upper},workdir={work}".encode()
    _check(_libc.mount(b"overlay", os.fsencode(merged), b"overlay", 0, options), "mount")


def _check(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
