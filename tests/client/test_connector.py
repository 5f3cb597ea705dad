"""The services of this process, when something goes wrong with one of them."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from paddock._compose import LocalConnector
from paddock.client import Door
from tests.client.door import FakeDoor


def test_a_service_that_cannot_be_closed_does_not_keep_the_others(tmp_path: Path) -> None:
    closed: list[str] = []

    async def open_service(state_dir: Path, stack: AsyncExitStack) -> Door:
        async def close() -> None:
            closed.append(state_dir.name)
            if state_dir.name != "b":
                raise ZeroDivisionError(state_dir.name)

        stack.push_async_callback(close)
        return FakeDoor(state_dir)

    connector = LocalConnector(open_service)
    loops = [connector.home(tmp_path / name).loop for name in "abc"]
    with pytest.raises(ZeroDivisionError):
        connector.close()
    assert sorted(closed) == ["a", "b", "c"]
    assert not any(loop._thread.is_alive() for loop in loops)
    connector.close()


_PROGRAM = """
import asyncio, sys
from pathlib import Path
from paddock._compose import LocalConnector
from tests.client.door import FakeDoor
async def open_service(state_dir, stack):
    stack.push_async_callback(asyncio.to_thread, print, "closed")
    return FakeDoor(state_dir)
LocalConnector(open_service).home(Path(sys.argv[1]))
"""


def test_what_a_service_does_last_may_take_a_thread(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=100, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "closed\n", "")
