"""The start of a serving process: default signals, and no more imports. And filters of system calls."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
from struct import pack

from paddock.linux._syscall import call
from paddock.linux.prctl import end_with
from paddock.linux.python import seal_imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_SET_MODE_FILTER, _NEW_LISTENER = 1, 8
# linux/bpf_common.h, linux/seccomp.h
LOAD, AND, JUMP_IF_EQUAL, RETURN = 0x20, 0x54, 0x15, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, THIRD_ARGUMENT = 0, 4, 16, 32
ALLOW = 0x7FFF_0000


def prepare_process(*, fatal_imports: bool) -> None:
    if parent := os.getppid():
        end_with(parent)
    for number in range(1, signal.NSIG):
        if signal.getsignal(number) in (signal.SIG_IGN, signal.default_int_handler):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    seal_imports(fatal=fatal_imports)
    gc.freeze()


def install_filter(instructions: Sequence[tuple[int, int, int, int]], *, listener: bool = False) -> int:
    """seccomp(2): a filter more, for the caller and all that it starts. Needs no_new_privs.

    Return the descriptor of its notices, if there is to be a `listener`.
    """
    program = b"".join(pack("HBBI", *instruction) for instruction in instructions)
    pointer = ctypes.create_string_buffer(program, len(program))
    filter = pack("HxxxxxxP", len(instructions), ctypes.addressof(pointer))
    return call("seccomp", _SET_MODE_FILTER, _NEW_LISTENER if listener else 0, filter)
