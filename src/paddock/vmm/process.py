"""The start of a serving process: default signals, and no more imports. And filters of system calls."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
from struct import pack

from paddock.linux.prctl import end_with
from paddock.linux.python import seal_imports
from paddock.linux.syscall import call

_SET_MODE_FILTER, _NEW_LISTENER = 1, 8  # linux/seccomp.h


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


def install_filter(program: str, *, listener: bool = False) -> int:
    """seccomp(2): a filter more, in hexadecimal, for the caller and all that it starts. Needs no_new_privs.

    Return the descriptor of its notices, if there is to be a `listener`.
    """
    code = bytes.fromhex(program)
    pointer = ctypes.create_string_buffer(code, len(code))
    filter = pack("HxxxxxxP", len(code) // 8, ctypes.addressof(pointer))
    return call("seccomp", _SET_MODE_FILTER, _NEW_LISTENER if listener else 0, filter)
