"""How the tests start the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

FAKE = Path(__file__).with_name("fake_paddock.py")
Paddock = Callable[..., "subprocess.CompletedProcess[bytes]"]


def environment(directory: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PADDOCK", "PYTHON"))}
    return kept | {"PADDOCK_STATE_DIR": str(directory), "PYTHONDONTWRITEBYTECODE": "1"}


def argv(directory: Path, *arguments: str) -> list[str]:
    return [sys.executable, str(FAKE), str(directory), *arguments]


@contextmanager
def started(directory: Path, *arguments: str, stdin: int = subprocess.DEVNULL) -> Generator[subprocess.Popen[bytes]]:
    """The same while it runs; a test that fails halfway leaves none behind."""
    with subprocess.Popen(
        argv(directory, *arguments),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(directory),
    ) as process:
        try:
            yield process
            process.wait(30)
        finally:
            process.kill()
