"""Programs that use paddock and are killed, and the look at what they left."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from paddock.client import DaemonTransport, default_transport

PROGRAM = """
import json, os, sys
from paddock import Sandbox
def say(**facts): print(json.dumps(facts), flush=True)
"""


class Program:
    """A Python program in a process of its own, that says JSON lines."""

    def __init__(self, state_dir: Path, code: str, *, preface: str = "") -> None:
        environment = {**os.environ, "PADDOCK_STATE_DIR": str(state_dir)}
        environment.pop("PADDOCK_URL", None)
        self.process = subprocess.Popen(
            [sys.executable, "-c", preface + PROGRAM + code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )

    def hears(self, *, seconds: float = 60) -> dict[str, Any]:
        """The next line; fails with the program's own words if it ended instead."""
        stream = self.process.stdout
        assert stream is not None
        ready, _, _ = select.select([stream], [], [], seconds)
        assert ready, f"nothing was said in {seconds:g} s"
        line = stream.readline()
        if not line:
            self._explain()
        return json.loads(line)

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.close()

    def ends(self) -> int:
        return self.process.wait(60)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _explain(self) -> None:
        assert self.process.stderr is not None
        words = self.process.stderr.read().decode(errors="replace")
        if "LevelUnavailableError" in words or "NotImplementedError" in words:
            pytest.skip(f"no sandbox here: {words.strip().splitlines()[-1]}")
        raise AssertionError(f"the program ended with {self.process.wait()}:\n{words}")


@pytest.fixture
def transport(state_dir: Path) -> DaemonTransport:
    return default_transport(state_dir)


@pytest.fixture
def program(state_dir: Path) -> Generator[Callable[..., Program]]:
    """Starts programs on the test's own state directory; all are ended with the test."""
    with contextlib.ExitStack() as stack:

        def start(code: str, **options: Any) -> Program:
            made = Program(options.pop("state_dir", state_dir), code, **options)
            stack.callback(made.close)
            return made

        yield start
