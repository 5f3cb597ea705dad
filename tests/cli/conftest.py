from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.command_line import Paddock, argv, environment


@pytest.fixture
def paddock(tmp_path: Path) -> Paddock:
    """`paddock("run", "--", "true")`, in a process of its own, with pipes."""

    def run(*arguments: str, input: bytes = b"", **environ: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            argv(tmp_path, *arguments),
            input=input,
            capture_output=True,
            env=environment(tmp_path) | environ,
            timeout=60,
            check=False,
        )

    return run
