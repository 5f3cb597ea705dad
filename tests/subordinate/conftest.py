"""State directories of an ordinary user whose sandboxes have his subordinate ids."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from paddock.linux.subordinate_ids import SubordinateIds, granted
from paddock.storage.pool.removal import remove
from paddock.storage.pool.worker import Worker
from tests.conftest import configure, live_sandboxes, private_state
from tests.orphans import wait_until

if TYPE_CHECKING:
    from paddock import Sandbox


@pytest.fixture(scope="session")
def ids() -> SubordinateIds:
    if os.geteuid() == 0:
        pytest.skip("needs an ordinary user")
    found = granted()
    if isinstance(found, str):
        pytest.skip(f"no subordinate ids: {found}")
    return found


@contextlib.contextmanager
def whole_state(ids: SubordinateIds) -> Generator[Path]:
    directory = None
    try:
        with private_state(ignore=("descriptors",)) as directory:
            yield directory
    finally:
        if directory is not None and directory.exists():  # what root of a sandbox owns, its user cannot remove
            worker = Worker(0, ids)
            above = os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY)
            worker.do(remove, (above,), directory.name)
            os.close(above)
            worker.close()


@pytest.fixture
def whole(ids: SubordinateIds) -> Generator[Path]:
    """A state directory, for a test that asks for subordinate ids by itself."""
    with whole_state(ids) as directory:
        yield directory


@pytest.fixture(scope="session")
def whole_shared(ids: SubordinateIds) -> Generator[Path]:
    """The state directory of `create`'s sandboxes."""
    with whole_state(ids) as directory:
        configure(directory, subordinate_ids=True)
        yield directory


@pytest.fixture
def create(whole_shared: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[..., Sandbox]]:
    """`Sandbox.create`; all are dead after the test."""
    from paddock import Sandbox

    monkeypatch.setenv("PADDOCK_STATE_DIR", str(whole_shared))
    monkeypatch.delenv("PADDOCK_URL", raising=False)
    with contextlib.ExitStack() as stack:

        def make(**arguments: object) -> Sandbox:
            made = Sandbox.create(**arguments)  # type: ignore[arg-type]
            stack.callback(made.kill)
            return made

        yield make
    assert wait_until(lambda: not live_sandboxes(whole_shared)), "a killed sandbox is still there"
