"""A process of ours that begins to serve: only the descriptors that it needs, signals as they were, no imports."""

from __future__ import annotations

import gc
import os
import signal

from ._kernel import set_parent_death_signal
from ._seal import seal_imports


def prepare_process(keep: tuple[int, ...], *, fatal_imports: bool = False) -> None:
    parent = os.getppid()
    if parent:
        set_parent_death_signal(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    close_others(keep)
    signal.set_wakeup_fd(-1)
    for number in range(1, signal.NSIG):
        if signal.getsignal(number) in (signal.SIG_IGN, signal.default_int_handler):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    seal_imports(fatal=fatal_imports)
    gc.freeze()
    gc.enable()  # the keeper that we were forked from collects nothing, and every command leaves a cycle or two


def close_others(keep: tuple[int, ...]) -> None:
    """Every descriptor above 2 but these."""
    low = 3
    for fd in sorted(fd for fd in keep if fd > 2):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1 << 30)
