from __future__ import annotations

import ctypes
import errno
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddock.linux import caps, prctl, proc, seccomp
from paddock.linux.seccomp import ALLOW, AUDIT_ARCH, KILL_PROCESS, Case, Cases, Compare, Verdict
from paddock.linux.syscall import MACHINE

from . import bpf
from .child import run_in_child

ARCH = AUDIT_ARCH["x86_64"]
I386 = 0x4000_0003

words = st.one_of(st.sampled_from([0, 1, 0xFFFF_FFFF, 1 << 31]), st.integers(0, 2**32 - 1))
longs = st.one_of(words, st.integers(0, 2**64 - 1), words.map(lambda w: w | 1 << 32))
actions = st.integers(1, 120).map(seccomp.fail_with) | st.just(ALLOW)


@st.composite
def compares(draw: st.DrawFn) -> Compare:
    mask = draw(st.sampled_from([0xFFFF_FFFF, 0x7E02_0080, 0xF, 0, 2**64 - 1, 0xFF << 32, 1 << 40 | 1]) | longs)
    return Compare(draw(st.integers(0, 5)), draw(longs) & mask, mask)


cases = st.builds(Case, st.lists(compares(), max_size=3).map(tuple), actions)
verdicts: st.SearchStrategy[Verdict] = actions | st.builds(Cases, st.lists(cases, max_size=3).map(tuple), actions)


def naive(table: dict[int, Verdict], otherwise: int, arch: int, number: int, arguments: list[int]) -> int:
    """What the filter should say, one number and one case after the other."""
    if arch != ARCH:
        return KILL_PROCESS
    verdict = table.get(number, otherwise)
    if isinstance(verdict, int):
        return verdict
    for case in verdict.cases:
        if all(arguments[c.argument] & c.mask == c.value for c in case.when):
            return case.action
    return verdict.otherwise


def fitting(table: dict[int, Verdict], arguments: list[int]) -> list[list[int]]:
    """Arguments that fit a case are rare among random ones: these do."""
    return [
        [next((w.value for w in case.when if w.argument == i), arguments[i]) for i in range(6)]
        for verdict in table.values()
        if isinstance(verdict, Cases)
        for case in verdict.cases
    ]


@given(
    table=st.dictionaries(st.integers(0, 40) | st.integers(0, 2**31), verdicts, max_size=25),
    otherwise=actions,
    arguments=st.lists(longs, min_size=6, max_size=6),
    more=st.lists(words, max_size=5),
    arch=st.sampled_from([ARCH, ARCH, I386, AUDIT_ARCH["aarch64"]]),
)
def test_a_compiled_filter_says_what_a_linear_reading_of_its_table_says(
    table: dict[int, Verdict], otherwise: int, arguments: list[int], more: list[int], arch: int
) -> None:
    program = seccomp.compile(ARCH, table, otherwise)
    near = [n + d for n in table for d in (-1, 0, 1) if 0 <= n + d < 2**32]
    for number in [*near, *more, 0, 2**32 - 1]:
        for values in [arguments, *fitting(table, arguments)]:
            assert bpf.run(program, arch, number, values) == naive(table, otherwise, arch, number, values)


def test_a_mask_of_64_bits_looks_at_both_halves_and_one_of_32_at_the_low_only() -> None:
    whole = seccomp.compile(ARCH, {1: Cases((Case((Compare(0, 5, 2**64 - 1),), ALLOW),), KILL_PROCESS)}, KILL_PROCESS)
    high = seccomp.compile(
        ARCH, {1: Cases((Case((Compare(0, 1 << 40, 1 << 40),), ALLOW),), KILL_PROCESS)}, KILL_PROCESS
    )
    low = seccomp.compile(ARCH, {1: Cases((Case((Compare(0, 5),), ALLOW),), KILL_PROCESS)}, KILL_PROCESS)
    assert [bpf.run(p, ARCH, 1, [5]) for p in (whole, high, low)] == [ALLOW, KILL_PROCESS, ALLOW]
    assert [bpf.run(p, ARCH, 1, [5 | 1 << 40]) for p in (whole, high, low)] == [KILL_PROCESS, ALLOW, ALLOW]


@pytest.mark.parametrize("numbers", [200, 255, 256, 257, 300, 1000])
def test_jumps_reach_any_distance(numbers: int) -> None:
    table: dict[int, Verdict] = {number: seccomp.fail_with(number % 3 + 1) for number in range(numbers)}
    program = seccomp.compile(ARCH, table, ALLOW)
    for number in range(numbers + 1):
        assert bpf.run(program, ARCH, number) == table.get(number, ALLOW)


def test_a_comparison_that_can_never_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="mask"):
        seccomp.compile(ARCH, {1: Cases((Case((Compare(0, 0x10, 0xF),), ALLOW),), ALLOW)}, ALLOW)


def test_a_program_too_long_for_the_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="instructions"):
        seccomp.compile(ARCH, {number: seccomp.fail_with(number % 2 + 1) for number in range(2500)}, ALLOW)


@settings(deadline=None)
@given(
    table=st.dictionaries(st.integers(900, 960), verdicts, min_size=1, max_size=12),
    arguments=st.lists(longs, min_size=6, max_size=6),
)
def test_the_kernel_agrees_with_the_interpreter(table: dict[int, Verdict], arguments: list[int]) -> None:
    arch = AUDIT_ARCH[MACHINE]
    program = seccomp.compile(arch, table, ALLOW)
    raw = ctypes.CDLL(None, use_errno=True).syscall
    raw.argtypes = (ctypes.c_long, *(ctypes.c_ulong,) * 6)

    def body() -> None:
        prctl.set_no_new_privileges()
        seccomp.Filter(program).install()
        for number in range(899, 962):  # numbers that no kernel has: ENOSYS where allowed
            for values in [arguments, *fitting(table, arguments)]:
                said = bpf.run(program, arch, number, values)
                assert raw(number, *values) == -1
                assert ctypes.get_errno() == (errno.ENOSYS if said == ALLOW else said & 0xFFFF), (number, values)

    run_in_child(body)


def test_another_architecture_is_killed() -> None:
    program = seccomp.compile(ARCH, {}, ALLOW)
    assert bpf.run(program, I386, 0) == KILL_PROCESS
    assert bpf.run(program, ARCH, 0) == ALLOW


def test_without_no_new_privileges_a_filter_is_refused() -> None:
    def body() -> None:
        if proc.status()["NoNewPrivs"] == "1":
            os._exit(0)
        caps.drop_all()
        with pytest.raises(PermissionError, match="seccomp"):
            seccomp.Filter(seccomp.compile(AUDIT_ARCH[MACHINE], {}, ALLOW)).install()

    run_in_child(body)


@pytest.mark.parametrize(
    "program", [b"", b"x" * 7, bytes(8), b"\x05\0\0\0\x09\0\0\0", b"\x20\0\0\0\x40\0\0\0" + bytes(8)]
)
def test_the_interpreter_refuses_what_the_kernel_would(program: bytes) -> None:
    with pytest.raises(ValueError):
        bpf.run(program, ARCH, 0)
