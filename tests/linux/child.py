"""Running a part of a test in a process of its own, for what a process cannot take back."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

import pytest

from paddock.linux import namespaces


def run_in_child(body: Callable[[], object], flags: int = 0) -> None:
    """Runs `body` in a child; its exception is the test's failure. `flags`: namespaces to make."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(read_end)
            if flags:
                namespaces.unshare(flags)
            body()
            status = 0
        except BaseException:
            os.write(write_end, traceback.format_exc().encode()[-8000:])
        finally:
            sys.stdout.flush()
            os._exit(status)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    if status:
        pytest.fail(f"the child ended with {os.waitstatus_to_exitcode(status)}\n{text}", pytrace=False)


def descriptors(pid: int | str = "self") -> dict[int, str]:
    """What each open descriptor of `pid` refers to; those that close meanwhile are left out."""
    found: dict[int, str] = {}
    directory = f"/proc/{pid}/fd"
    for name in os.listdir(directory):
        try:
            found[int(name)] = os.readlink(f"{directory}/{name}")
        except FileNotFoundError:
            continue
    return found
