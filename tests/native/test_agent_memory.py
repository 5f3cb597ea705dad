"""A sandbox that lives for long: what its agent holds does not depend on how much it has done."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from paddock.wire.guest import ExecFlags
from tests.native.driver import Connection, Guest, build_module
from tests.native.filing import Files

KEPT = 1200
"""More than the ended commands that an agent remembers."""
WORK: dict[str, tuple[int, Callable[[Connection, Path], object]]] = {
    "commands": (100_000, lambda host, _: host.run("true")),
    "output": (10_000, lambda host, _: host.run("head", "-c", "100000", "/dev/zero")),
    "terminals": (10_000, lambda host, _: host.run("true", flags=ExecFlags.TERMINAL)),
    "writes": (100_000, lambda host, root: Files(host, root).write("file", b"data")),
}


@pytest.mark.parametrize(
    "most", [1000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])], ids=["some", "all"]
)
@pytest.mark.parametrize("work", WORK)
def test_an_agent_holds_no_more_after_many(work: str, most: int, tmp_path: Path) -> None:
    count, do = WORK[work]
    with Guest(build_module().build(), tmp_path / "s") as guest, ExitStack() as closing:
        host = guest.connect()
        closing.callback(host.close)
        for _ in range(KEPT):
            do(host, tmp_path)
        host.ping()  # and with it the agent has done what follows the last answer
        before = guest.resident_kib(), guest.descriptors()
        for _ in range(min(count, most)):
            do(host, tmp_path)
        host.ping()
        assert (guest.resident_kib(), guest.descriptors()) == before
