"""The services of this process, when something goes wrong with one of them."""

from __future__ import annotations

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
