from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from paddock.linux import syscall, syscall_names


def test_a_failing_call_raises_the_fitting_subclass_and_says_what_was_attempted() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        syscall.call("umount2", b"/does/not/exist", 0, what=("umount", b"/does/not/exist"))
    assert caught.value.errno == errno.ENOENT
    assert caught.value.filename == "umount /does/not/exist"


def test_arguments_keep_all_64_bits() -> None:
    # lseek takes an offset of 64 bits: ctypes would cut a plain int to 32.
    with os.fdopen(os.memfd_create("sparse"), "wb") as file:
        assert syscall.call("lseek", file.fileno(), 1 << 40, os.SEEK_SET) == 1 << 40


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_call_of_the_package_is_in_the_kernels_table(machine: str) -> None:
    sources = "".join(path.read_text() for path in Path(syscall.__file__).parent.glob("*.py"))
    called = set(re.findall(r'\bcall(?:_locked)?\(\s*"(\w+)"', sources))
    assert len(called) > 30
    assert called <= syscall_names.numbers(machine).keys()


def test_both_tables_give_each_number_one_name() -> None:
    for machine in ("x86_64", "aarch64"):
        table = syscall_names.numbers(machine)
        assert len(set(table.values())) == len(table)
        assert len(table) > 320
