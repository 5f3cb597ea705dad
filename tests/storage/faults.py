"""Killing a process between two of its steps, whichever they are."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from tests.conformance.trees import exit_code, in_child

_STEPS = ("open", "os.", "fcntl.", "subprocess.", "shutil.", "tempfile.", "ctypes.call_function")


def killed_before_step(step: int, work: Callable[[], object]) -> bool:
    """Runs `work` in a child that is killed (as by kill -9) before its `step`-th operation on files.

    False: it had fewer, and is done. Steps are audit events (PEP 578), which precede each system call of interest.
    """

    def child() -> None:
        left = step

        def count(event: str, _: tuple[object, ...]) -> None:
            nonlocal left
            if event.startswith(_STEPS):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        work()
        left = -1

    code = exit_code(in_child(child))
    assert code in (0, -signal.SIGKILL), "it failed by itself"
    return code != 0
