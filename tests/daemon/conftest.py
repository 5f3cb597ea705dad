"""Programs that use paddock, and the daemon that they start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from paddock.client import daemon_status

Start = Callable[..., "Program"]


class Program:
    """A Python program with `Sandbox` imported; `say(value)` prints a line, which `hears` returns."""

    def __init__(self, state_dir: Path, text: str, **environ: str) -> None:
        prelude = "import os, sys, time\nfrom paddock import Sandbox\nsay = lambda *words: print(*words, flush=True)\n"
        self.process = subprocess.Popen(
            [sys.executable, "-c", prelude + text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PADDOCK_STATE_DIR": str(state_dir)} | environ,
        )

    def hears(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            _, problem = self.process.communicate(timeout=60)
            pytest.fail(f"the program ended: {problem}")
        return line.rstrip("\n")

    def says_on_stderr(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def tell(self) -> None:
        """It reads a line."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def program(state_dir: Path) -> Generator[Start]:
    """`program(text)`: started now, dead at the end of the test."""
    started: list[Program] = []

    def start(text: str, **environ: str) -> Program:
        started.append(Program(state_dir, text, **environ))
        return started[-1]

    yield start
    for one in started:
        one.close()


def daemon_pid(state_dir: Path) -> int:
    found = daemon_status(state_dir)
    assert found is not None, "no daemon runs"
    return found.pid
