from __future__ import annotations

import errno
import os

import pytest

from paddock.linux import _syscall, _syscall_names
from paddock.linux._syscall import NR


def test_a_failing_call_raises_the_fitting_subclass_and_says_what_was_attempted() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        _syscall.call(NR.UMOUNT2, b"/does/not/exist", 0, what=("umount", b"/does/not/exist"))
    assert caught.value.errno == errno.ENOENT
    assert caught.value.filename == "umount /does/not/exist"


def test_arguments_keep_all_64_bits() -> None:
    # lseek takes an offset of 64 bits: ctypes would cut a plain int to 32.
    number = _syscall_names.numbers(_syscall.MACHINE)["lseek"]
    with os.fdopen(os.memfd_create("sparse"), "wb") as file:
        assert _syscall.call(number, file.fileno(), 1 << 40, os.SEEK_SET) == 1 << 40


def test_the_numbers_used_are_those_of_the_kernels_table() -> None:
    table = _syscall_names.numbers(_syscall.MACHINE)
    for name, number in vars(NR).items():
        if name.isupper():
            assert table[name.lower()] == number, name


def test_both_tables_give_each_number_one_name() -> None:
    for machine in ("x86_64", "aarch64"):
        table = _syscall_names.numbers(machine)
        assert len(set(table.values())) == len(table)
        assert len(table) > 320
