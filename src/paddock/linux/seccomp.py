"""Filters of system calls: an assembler for the kernel's classic BPF, and installation.

Facts: seccomp(2), Documentation/networking/filter.rst, include/uapi/linux/{filter,bpf_common,seccomp,audit}.h.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from paddock.linux.syscall import call

ALLOW = 0x7FFF_0000
KILL_PROCESS = 0x8000_0000
NOTIFY = 0x7FC0_0000
"""The listener of the filter decides (seccomp_unotify(2))."""


def fail_with(number: int) -> int:
    """Return the action: the call is not made and gives errno `number`."""
    return 0x0005_0000 | number & 0xFFFF


AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}

_LD_W_ABS = 0x20
_AND_K = 0x54
_RET_K = 0x06
_JA = 0x05
_JEQ = 0x15
_JGE = 0x35
_INSTRUCTION = struct.Struct("=HBBI")  # struct sock_filter: code, jt, jf, k
_MAX_INSTRUCTIONS = 4096  # BPF_MAXINSNS
_LONGEST_JUMP = 255

# struct seccomp_data: nr, arch, instruction pointer, six arguments of 64 bits
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16


class Compare(NamedTuple):
    """A comparison: `argument & mask == value`.

    With a mask of 32 bits at most, it only covers those bits.

    The kernel reads most numbers as 32 bits and ignores the others. A comparison of 64 bits would be evadable.
    """

    argument: int
    value: int
    mask: int = 0xFFFF_FFFF


class Case(NamedTuple):
    """The action of a call for which all comparisons hold."""

    when: tuple[Compare, ...]
    action: int


class Cases(NamedTuple):
    """The first case that fits decides, else `otherwise`."""

    cases: tuple[Case, ...]
    otherwise: int


Verdict = int | Cases


Code = list[bytes]
"""Instructions that end with a verdict on every path."""


def _instruction(code: int, k: int, true: int = 0, false: int = 0) -> bytes:
    """Jumps go forward, over so many instructions."""
    return _INSTRUCTION.pack(code, true, false, k)


def compile(arch: int, verdicts: Mapping[int, Verdict], otherwise: int) -> bytes:
    """Return a program.

    It kills other architectures, and gives numbers without a verdict `otherwise`.

    It finds numbers by binary search over runs of equal verdicts: some eight steps. Raises ValueError if it is too long
    for the kernel.
    """
    code = [
        _instruction(_LD_W_ABS, _ARCH_AT),
        _instruction(_JEQ, arch, true=1),
        _instruction(_RET_K, KILL_PROCESS),
        _instruction(_LD_W_ABS, _NUMBER_AT),
        *_search(_runs(verdicts, otherwise)),
    ]
    if len(code) > _MAX_INSTRUCTIONS:
        raise ValueError(f"{len(code)} instructions; the kernel takes {_MAX_INSTRUCTIONS}")
    return b"".join(code)


def _runs(verdicts: Mapping[int, Verdict], otherwise: int) -> list[tuple[int, Verdict]]:
    """Return the start of each run of numbers with one verdict. The first is at 0, and the last has no end."""
    runs: list[tuple[int, Verdict]] = []
    next_number = 0
    for number in sorted(verdicts):
        if number > next_number:
            _extend(runs, next_number, otherwise)
        _extend(runs, number, verdicts[number])
        next_number = number + 1
    _extend(runs, next_number, otherwise)
    return runs


def _extend(runs: list[tuple[int, Verdict]], number: int, verdict: Verdict) -> None:
    if not runs or runs[-1][1] != verdict:
        runs.append((number, verdict))


def _search(runs: Sequence[tuple[int, Verdict]]) -> Code:
    if len(runs) == 1:
        return _verdict(runs[0][1])
    middle = len(runs) // 2
    first, lower, upper = runs[middle][0], _search(runs[:middle]), _search(runs[middle:])
    if len(lower) <= _LONGEST_JUMP:
        return [_instruction(_JGE, first, true=len(lower)), *lower, *upper]
    return [_instruction(_JGE, first, false=1), _instruction(_JA, len(lower)), *lower, *upper]


def _verdict(verdict: Verdict) -> Code:
    if isinstance(verdict, int):
        return [_instruction(_RET_K, verdict)]
    code = [_instruction(_RET_K, verdict.otherwise)]
    for case in reversed(verdict.cases):
        fits = [_instruction(_RET_K, case.action)]
        for compare in reversed(case.when):
            fits = _compare(compare, fits)
        code = [*fits, *code]
    return code


def _compare(compare: Compare, fits: Code) -> Code:
    """Go on with `fits` if it holds, else behind them."""
    if compare.value & ~compare.mask:
        raise ValueError(f"no argument can be {compare.value:#x} under the mask {compare.mask:#x}")
    for half in (1, 0):  # little-endian, both machines: the low half lies first
        mask = compare.mask >> 32 * half & 0xFFFF_FFFF
        if mask == 0 and (half == 1 or compare.mask):
            continue
        fits = [_instruction(_JEQ, compare.value >> 32 * half & 0xFFFF_FFFF, false=len(fits)), *fits]
        if mask != 0xFFFF_FFFF:
            fits = [_instruction(_AND_K, mask), *fits]
        fits = [_instruction(_LD_W_ABS, _ARGUMENTS_AT + 8 * compare.argument + 4 * half), *fits]
    return fits


class Filter:
    """A program in the kernel's form, made once. Any descendant of the process can install it."""

    def __init__(self, program: bytes) -> None:
        self.program = program
        self._code = ctypes.create_string_buffer(program, len(program))
        # struct sock_fprog: the number of instructions, and a pointer to them
        fields = struct.pack("=H6xQ", len(program) // 8, ctypes.addressof(self._code))
        self._fprog = ctypes.create_string_buffer(fields, len(fields))

    def install(self) -> None:
        """Put the calling thread and all that it starts under the filter, for good.

        OSError EACCES without no_new_privs (or CAP_SYS_ADMIN).
        """
        call("seccomp", 1, 0, self._fprog, what="seccomp: set a filter")  # SECCOMP_SET_MODE_FILTER
