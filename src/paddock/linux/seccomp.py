"""Filters of system calls: an assembler for the kernel's classic BPF, and installation.

Facts: seccomp(2), Documentation/networking/filter.rst, include/uapi/linux/{filter,bpf_common,seccomp,audit}.h.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from paddock.linux._syscall import NR, call

ALLOW = 0x7FFF_0000
KILL_PROCESS = 0x8000_0000


def fail_with(number: int) -> int:
    """The action: the call is not made and gives errno `number`."""
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

# struct seccomp_data: nr, arch, instruction pointer, six arguments of 64 bits
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16


class Compare(NamedTuple):
    """Whether `argument & mask == value`. Where the mask has 32 bits at most, so has what is looked at.

    The kernel takes most numbers as 32 bits and ignores what is above: a comparison of 64 would be evaded by that.
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


class Assembler:
    """Collects instructions and labels; jumps name labels, forward only, of any distance."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int, str | None, str | None]] = []
        self._labels: dict[str, int] = {}
        self._fresh = 0

    def label(self, name: str) -> None:
        """Names the place of the next instruction."""
        if name in self._labels:
            raise ValueError(f"label {name!r} is there already")
        self._labels[name] = len(self._code)

    def fresh(self) -> str:
        """A label's name that nobody else has."""
        self._fresh += 1
        return f"#{self._fresh}"

    def load(self, offset: int) -> None:
        """Loads the 32 bits at `offset` of struct seccomp_data."""
        self._code.append((_LD_W_ABS, offset, None, None))

    def mask(self, bits: int) -> None:
        """Keeps only these bits of what was loaded."""
        self._code.append((_AND_K, bits, None, None))

    def jump_if_equal(self, value: int, true: str | None = None, false: str | None = None) -> None:
        """Goes on at `true` or `false`; None is the next instruction."""
        self._code.append((_JEQ, value, true, false))

    def jump_if_at_least(self, value: int, true: str | None = None, false: str | None = None) -> None:
        """As `jump_if_equal`, for loaded >= value, without sign."""
        self._code.append((_JGE, value, true, false))

    def answer(self, action: int) -> None:
        """Ends with this verdict."""
        self._code.append((_RET_K, action, None, None))

    def assemble(self) -> bytes:
        """The program. ValueError: a label is missing or behind, or the program is too long for the kernel."""
        sizes = [1] * len(self._code)
        while not self._settle(sizes):
            pass
        starts = _starts(sizes)
        words: list[bytes] = []
        for index, (code, k, true, false) in enumerate(self._code):
            words += self._encode(starts, sizes[index], index, code, k, true, false)
        if not 0 < len(words) <= _MAX_INSTRUCTIONS:
            raise ValueError(f"{len(words)} instructions; the kernel takes 1 to {_MAX_INSTRUCTIONS}")
        return b"".join(words)

    def _settle(self, sizes: list[int]) -> bool:
        """Gives each jump that reaches too far room for a long one. False: something moved, look again."""
        starts = _starts(sizes)
        settled = True
        for index, (code, _, true, false) in enumerate(self._code):
            if code not in (_JEQ, _JGE):
                continue
            after = starts[index] + 1
            far = sum(
                label is not None and self._distance(starts, label, after, index) > 250 for label in (true, false)
            )
            if sizes[index] < 1 + far:
                sizes[index] = 1 + far
                settled = False
        return settled

    def _distance(self, starts: list[int], label: str, after: int, index: int) -> int:
        target = self._labels.get(label)
        if target is None or target <= index or target >= len(self._code):
            raise ValueError(f"label {label!r} is not ahead")
        return starts[target] - after

    def _encode(
        self, starts: list[int], size: int, index: int, code: int, k: int, true: str | None, false: str | None
    ) -> list[bytes]:
        if code not in (_JEQ, _JGE):
            return [_INSTRUCTION.pack(code, 0, 0, k)]
        after = starts[index] + 1
        short: list[int] = []
        long: list[bytes] = []
        for label in (true, false):
            distance = size - 1 if label is None else self._distance(starts, label, after, index)
            if distance > 250:  # one long jump per far target stands right behind this instruction
                position = len(long)
                long.append(_INSTRUCTION.pack(_JA, 0, 0, distance - position - 1))
                distance = position
            short.append(distance)
        return [_INSTRUCTION.pack(code, short[0], short[1], k), *long]


def _starts(sizes: Sequence[int]) -> list[int]:
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    return starts


def compile(arch: int, verdicts: Mapping[int, Verdict], otherwise: int) -> bytes:
    """A program: any other architecture is killed, numbers without a verdict get `otherwise`.

    Numbers are found by binary search over runs of equal verdicts: some eight steps.
    """
    assembler = Assembler()
    assembler.load(_ARCH_AT)
    assembler.jump_if_equal(arch, true="arch")
    assembler.answer(KILL_PROCESS)
    assembler.label("arch")
    assembler.load(_NUMBER_AT)
    _search(assembler, _runs(verdicts, otherwise))
    return assembler.assemble()


def _runs(verdicts: Mapping[int, Verdict], otherwise: int) -> list[tuple[int, Verdict]]:
    """Where each run of numbers with one verdict starts; the first at 0, the last without end."""
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


def _search(assembler: Assembler, runs: Sequence[tuple[int, Verdict]]) -> None:
    if len(runs) == 1:
        _verdict(assembler, runs[0][1])
        return
    middle = len(runs) // 2
    upper = assembler.fresh()
    assembler.jump_if_at_least(runs[middle][0], true=upper)
    _search(assembler, runs[:middle])
    assembler.label(upper)
    _search(assembler, runs[middle:])


def _verdict(assembler: Assembler, verdict: Verdict) -> None:
    if isinstance(verdict, int):
        assembler.answer(verdict)
        return
    for case in verdict.cases:
        no = assembler.fresh()
        for compare in case.when:
            _compare(assembler, compare, no)
        assembler.answer(case.action)
        assembler.label(no)
    assembler.answer(verdict.otherwise)


def _compare(assembler: Assembler, compare: Compare, no: str) -> None:
    if compare.value & ~compare.mask:
        raise ValueError(f"no argument can be {compare.value:#x} under the mask {compare.mask:#x}")
    for half in range(2):  # little-endian, both machines: the low half lies first
        mask = compare.mask >> 32 * half & 0xFFFF_FFFF
        if mask == 0 and (half == 1 or compare.mask):
            continue
        assembler.load(_ARGUMENTS_AT + 8 * compare.argument + 4 * half)
        if mask != 0xFFFF_FFFF:
            assembler.mask(mask)
        assembler.jump_if_equal(compare.value >> 32 * half & 0xFFFF_FFFF, false=no)


class Filter:
    """A program in the form that the kernel takes; made once, installed by any descendant of the process."""

    def __init__(self, program: bytes) -> None:
        self.program = program
        self._code = ctypes.create_string_buffer(program, len(program))
        # struct sock_fprog: the number of instructions, and a pointer to them
        fields = struct.pack("=H6xQ", len(program) // 8, ctypes.addressof(self._code))
        self._fprog = ctypes.create_string_buffer(fields, len(fields))

    def install(self) -> None:
        """Puts the calling thread and all that it starts under the filter, for good.

        OSError EACCES without no_new_privs (or CAP_SYS_ADMIN).
        """
        call(NR.SECCOMP, 1, 0, self._fprog, what="seccomp: set a filter")  # SECCOMP_SET_MODE_FILTER


def install(program: bytes) -> None:
    """Prepares and installs in one step."""
    Filter(program).install()
