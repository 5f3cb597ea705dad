"""A program that opens a path for writing is lent a descriptor for reading; and what a process has of its own."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import sys
from pathlib import Path

import pytest

from paddock.backends.microvm._qemu import opens
from paddock.linux import prctl
from paddock.vmm import _own_pages
from paddock.vmm._lending import OpenResponder
from paddock.vmm._loop import IN, Loop

PAGE = mmap.PAGESIZE
PAGES = 700
# Writes some pages of a private mapping, reads others, says how it could open the files, and waits.
PROGRAM = f"""
import fcntl, mmap, os, sys
lent, other, out = sys.argv[1], sys.argv[2], int(sys.argv[3])
fd = os.open(lent, os.O_RDWR)
mapping = mmap.mmap(fd, {PAGES * PAGE}, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
mapping[3 * {PAGE} : 3 * {PAGE} + 3] = b"own"
mapping[300 * {PAGE} : 600 * {PAGE}] = b"y" * (300 * {PAGE})
assert mapping[10 * {PAGE}] == ord("x")
modes = [fcntl.fcntl(each, fcntl.F_GETFL) & os.O_ACCMODE for each in (fd, os.open(other, os.O_RDWR))]
os.write(out, bytes(modes))
os.read(0, 1)
"""

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="virtual machines are x86_64 ones here")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    lent, other = tmp_path / "lent", tmp_path / "other"
    lent.write_bytes(b"x" * (PAGES * PAGE))
    lent.chmod(0o400)
    other.write_bytes(b"")
    return lent, other


def _run(lent: Path, other: Path) -> tuple[int, bytes, int]:
    """The program's pid, what it said, and what keeps it waiting."""
    loop = Loop()
    fd = os.open(lent, os.O_RDONLY | os.O_CLOEXEC)
    lending = OpenResponder(loop, str(lent), fd, opens())
    said, out = os.pipe()
    waits, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            prctl.set_no_new_privileges()  # as a jail has it
            lending.ask()
            os.dup2(waits, 0)
            os.set_inheritable(out, True)
            os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", PROGRAM, str(lent), str(other), str(out)])
        finally:
            os._exit(127)
    os.close(out)
    os.close(waits)
    lending.begin()
    loop.watch(said, IN, lambda _: loop.stop())
    loop.run()
    return pid, os.read(said, 16), go


def test_it_is_lent_for_reading_and_nothing_else_is(files: tuple[Path, Path]) -> None:
    pid, modes, go = _run(*files)
    try:
        assert list(modes) == [os.O_RDONLY, os.O_RDWR]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(go)


def test_what_it_has_written_is_saved_over_a_copy_and_nothing_else(files: tuple[Path, Path], tmp_path: Path) -> None:
    pid, _, go = _run(*files)
    copy = os.open(tmp_path / "copy", os.O_RDWR | os.O_CREAT)
    try:
        os.ftruncate(copy, PAGES * PAGE)
        written = _own_pages.save(pid, str(files[0]), PAGES * PAGE, copy)
        with pytest.raises(ValueError, match="are mapped"):
            _own_pages.save(pid, str(files[0]), (PAGES + 1) * PAGE, copy)
        assert written == 301 * PAGE
        assert os.pread(copy, PAGE, 3 * PAGE) == b"own" + b"x" * (PAGE - 3)
        assert os.pread(copy, 302 * PAGE, 299 * PAGE) == bytes(PAGE) + b"y" * (300 * PAGE) + bytes(PAGE)
        assert os.pread(copy, PAGE, 10 * PAGE) == bytes(PAGE)
    finally:
        os.close(copy)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(go)


def test_a_copy_that_has_no_room_is_an_error(files: tuple[Path, Path]) -> None:
    pid, _, go = _run(*files)
    full = os.memfd_create("small", os.MFD_ALLOW_SEALING)
    try:
        fcntl.fcntl(full, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        with pytest.raises(OSError, match="not permitted"):
            _own_pages.save(pid, str(files[0]), PAGES * PAGE, full)
    finally:
        os.close(full)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(go)
