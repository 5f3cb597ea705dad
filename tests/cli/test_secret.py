"""`paddock secret` on a state directory: no value on a command line, none in what is printed."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command_line import environment

VALUE = b"correct-horse-battery-staple"


@pytest.fixture
def state_dir(module_state: Path) -> Path:
    """Each test has a secret of its own in it."""
    return module_state


def paddock(directory: Path, *arguments: str, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    argv = [sys.executable, "-m", "paddock", "secret", *arguments]
    return subprocess.run(argv, input=input, capture_output=True, env=environment(directory), timeout=60)


def test_a_secret_is_set_from_stdin_listed_and_revoked(state_dir: Path) -> None:
    assert paddock(state_dir, "set", "TOKEN", input=VALUE + b"\n").stdout == b"TOKEN, version 1\n"
    shown = [paddock(state_dir, "ls"), paddock(state_dir, "ls", "--json")]
    assert [b"TOKEN" in done.stdout and VALUE not in done.stdout for done in shown] == [True, True]
    assert [secret["version"] for secret in json.loads(shown[1].stdout) if secret["name"] == "TOKEN"] == [1]
    assert json.loads(paddock(state_dir, "rm", "TOKEN", "--json").stdout) == ["TOKEN"]
    assert b"TOKEN" not in paddock(state_dir, "ls", "--json").stdout


def test_a_value_has_no_place_on_the_command_line(state_dir: Path) -> None:
    assert paddock(state_dir, "set", "TOKEN", VALUE.decode()).returncode == 2


def test_a_value_that_is_typed_is_not_echoed(state_dir: Path) -> None:
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "paddock", "secret", "set", "TYPED"]
    # A session of its own, so that the terminal is the one where it asks.
    with subprocess.Popen(
        argv, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env=environment(state_dir)
    ) as process:
        os.close(theirs)
        seen = b""
        while b"value of TYPED: " not in seen:
            seen += os.read(ours, 1024)
        os.write(ours, VALUE + b"\n")
        while b"version 1" not in seen:
            seen += os.read(ours, 1024)
        assert process.wait(60) == 0
    os.close(ours)
    assert VALUE not in seen
