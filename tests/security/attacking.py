"""How the attacks are made: Python inside that answers with JSON, and what the host can see of it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paddock import ExecResult, Sandbox
from paddock.supervisor import layout

PREAMBLE = """
import ctypes, errno, json, os, signal, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def name(number): return errno.errorcode.get(number, str(number))
def call(number, *arguments):
    'What the kernel answers: "allowed", or the name of the refusal.'
    ctypes.set_errno(0)
    values = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return "allowed" if libc.syscall(ctypes.c_long(number), *values) >= 0 else name(ctypes.get_errno())
def attempt(function, *arguments, **keywords):
    try: return function(*arguments, **keywords) or "allowed"
    except OSError as error: return name(error.errno)
    except ValueError as error: return "EPERM" if "not allowed" in str(error) else str(error)
def answer(value): sys.stdout.write("\\n" + json.dumps(value))
"""

REFUSALS = frozenset({"EPERM", "EACCES", "ENOSYS", "EAFNOSUPPORT", "EPROTONOSUPPORT", "EROFS", "ENOENT"})


class Attacker:
    """Somebody inside one sandbox."""

    def __init__(self, sandbox: Sandbox, user: str | None) -> None:
        self.sandbox = sandbox
        self.user = user

    def sh(self, script: str, **options: Any) -> ExecResult:
        return self.sandbox.exec(script, user=self.user, **options)

    def run(self, code: str, *arguments: str, **options: Any) -> ExecResult:
        argv = ("python3", "-I", "-S", "-c", PREAMBLE + code, *arguments)
        return self.sandbox.exec(argv, user=self.user, timeout_seconds=options.pop("timeout_seconds", 60), **options)

    def probe(self, code: str, *arguments: str, **options: Any) -> Any:
        """What the code gave to `answer`."""
        result = self.run(code, *arguments, **options)
        assert result.exit_code == 0, f"the probe itself failed: {result!r}"
        return json.loads(result.stdout.rpartition("\n")[2])

    def pids_on_host(self) -> list[int]:
        """All processes of the sandbox as the host sees them: those in the pid namespace of a marked one."""
        with self.marked() as pid:
            return self.pids_with(pid)

    def pids_with(self, pid: int) -> list[int]:
        space = os.readlink(f"/proc/{pid}/ns/pid")
        return [other for other in _pids() if _link(f"/proc/{other}/ns/pid") == space]

    @contextmanager
    def marked(self) -> Iterator[int]:
        """A process inside that lives during the block; its pid on the host."""
        marker = f"paddock-attacker-{os.urandom(8).hex()}"
        argv = ("python3", "-I", "-S", "-c", "print('up', flush=True); input()", marker)
        with self.sandbox.start(argv, stdin=True, user=self.user) as process:
            process.stdout.read(100)
            found = [pid for pid in _pids() if marker.encode() in _bytes(f"/proc/{pid}/cmdline")]
            assert len(found) == 1, f"one process carries the marker on the host, not {found}"
            yield found[0]


def needs(guarantee: str) -> None:
    """Skips where `paddock doctor` admits that this machine or user has not got it: only what is admitted may fail."""
    said = _admitted().get(guarantee)
    if said is not None:
        pytest.skip(f"doctor: {guarantee}: {said}")


@functools.cache
def _admitted() -> dict[str, str]:
    command = [sys.executable, "-m", "paddock", "doctor", "--level", "jail", "--json"]
    done = subprocess.run(command, capture_output=True, check=True)  # of the state directory of the test's sandboxes
    found = json.loads(done.stdout)
    others = {one["level"] for one in found["levels"]} - {"jail"}  # what they lack is nothing of the jail's
    weak = [line for line in found["checks"] if line["status"] == "weak" and line["area"] not in others]
    return {line["name"]: line["detail"] for line in weak}


def status_on_host(pid: int) -> dict[str, str]:
    lines = _bytes(f"/proc/{pid}/status").decode("utf-8", "replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def host_mounts() -> list[str]:
    """Mount points of the host, by id, but for those in places of other tests, which run beside."""
    table = Path("/proc/self/mountinfo").read_text().splitlines()
    return sorted(line for line in table if not _of_others(line.split()[4]))


def audited(state: Path, word: str) -> list[dict[str, Any]]:
    """The records with this word in them, in the order in which they were made."""
    lines = (line for file in (state / layout.AUDIT).glob("*.jsonl") for line in whole_lines(file))
    return sorted((json.loads(line) for line in lines if f'"{word}"'.encode() in line), key=lambda one: one["boottime"])


def whole_lines(log: Path) -> list[bytes]:
    """Those that have ended: the last one may be being written."""
    return log.read_bytes().rpartition(b"\n")[0].splitlines()


def allocated(directory: Path) -> int:
    """Bytes of the disk that everything below takes. (What is free on the disk is also up to what runs beside.)"""
    total = 0
    for place, _, files in os.walk(directory):
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(f"{place}/{file}").st_blocks * 512
    return total


def _of_others(place: str) -> bool:
    mine = os.environ["PADDOCK_STATE_DIR"]  # of the test's sandboxes
    return _TEMPORARY.match(place) is not None and not f"{place}/".startswith(f"{mine}/")


# Of pytest, of state directories, of engines of containers, and what `tempfile` makes unnamed.
_TEMPORARY = re.compile(rf"{re.escape(tempfile.gettempdir())}/(pytest-of-|p[dem]-|tmp|paddock-test-)")


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
