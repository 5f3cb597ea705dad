"""The kernel's classic BPF, interpreted: what a filter of system calls answers, without installing it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

_LD_W_ABS, _AND_K, _RET_K, _JA, _JEQ, _JGT, _JGE, _JSET = 0x20, 0x54, 0x06, 0x05, 0x15, 0x25, 0x35, 0x45
_INSTRUCTION = struct.Struct("=HBBI")
_MAX_INSTRUCTIONS, _DATA_SIZE = 4096, 64


def run(program: bytes, arch: int, number: int, arguments: Sequence[int] = ()) -> int:
    """The action that the kernel would take. ValueError for what its checker refuses (kernel/seccomp.c)."""
    if not program or len(program) % 8 or len(program) > 8 * _MAX_INSTRUCTIONS:
        raise ValueError("not a program")
    padded = [*arguments, *(0,) * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number & 0xFFFF_FFFF, arch, 0, *(value & 2**64 - 1 for value in padded))
    accumulator, at = 0, 0
    while at < len(program) // 8:
        code, true, false, k = _INSTRUCTION.unpack_from(program, at * 8)
        at += 1
        if code == _RET_K:
            return k
        if code == _LD_W_ABS:
            if k % 4 or k >= _DATA_SIZE:
                raise ValueError(f"load from {k}")
            accumulator = struct.unpack_from("=I", data, k)[0]
        elif code == _AND_K:
            accumulator &= k
        elif code == _JA:
            at += k
        else:
            at += true if _holds(code, accumulator, k) else false
    raise ValueError("the program runs over its end")


def _holds(code: int, accumulator: int, k: int) -> bool:
    if code == _JEQ:
        return accumulator == k
    if code == _JGT:
        return accumulator > k
    if code == _JGE:
        return accumulator >= k
    if code == _JSET:
        return accumulator & k != 0
    raise ValueError(f"instruction {code:#x}")
