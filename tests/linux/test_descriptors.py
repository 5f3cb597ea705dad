from __future__ import annotations

import os

from paddock.linux import descriptors

from .child import run_in_child


def test_all_descriptors_but_the_named_ones_are_closed() -> None:
    def body() -> None:
        fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]
        kept = {fds[1], fds[2], fds[6]}
        descriptors.close_all_but(*kept)
        for fd in (0, 1, 2, *kept):
            os.fstat(fd)
        for fd in set(fds) - kept:
            try:
                os.fstat(fd)
            except OSError:
                continue
            raise AssertionError(f"{fd} is open")

    run_in_child(body)
