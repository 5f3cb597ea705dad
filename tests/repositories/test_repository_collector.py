"""Repositories go when the disk is too full, and none that something needs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from paddock.daemon.clock import Clock
from paddock.daemon.store.references import TreeReference
from paddock.daemon.workspaces import repositories
from paddock.daemon.workspaces.repositories import Repositories
from paddock.errors import InvalidStateError
from paddock.storage.git import pins
from tests.repositories.git_servers import Origin, address
from tests.repositories.shelf import Shelf


async def test_one_goes_that_nothing_needs_and_that_was_not_used_just_now(
    shelf: Shelf, origin: Origin, daemon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquired = await shelf.acquire(address(daemon, "app"))
    needed: dict[str, tuple[TreeReference, ...]] = {}
    later = [0.0]
    clock = Clock(wall=lambda: Clock().wall() + later[0])
    monkeypatch.setattr(repositories, "trees_needed", lambda store: needed)
    collector = Repositories(msgspec.structs.replace(shelf.context, clock=clock))

    async def kept() -> str | None:
        (one,) = await collector.candidates()
        assert one.only_when_full
        assert (one.what, one.kind) == (acquired.repository, "repository")
        assert one.size
        return one.kept

    assert "a moment ago" in (await kept() or "")
    later[0] = 3600.0
    needed[acquired.repository] = (TreeReference(acquired.repository, "sb_1", "the objects of its history are there"),)
    assert "sb_1" in (await kept() or "")
    needed.clear()
    pins.pin(shelf.path(acquired), "ws_1", acquired.commit)
    assert "ws_1" in (await kept() or "")
    (one,) = await collector.candidates()
    with pytest.raises(InvalidStateError, match="ws_1"):  # asked again at the last moment
        await one.take(one.what)
    assert shelf.path(acquired).exists()
    pins.unpin(shelf.path(acquired), "ws_1")
    assert await kept() is None
    (one,) = await collector.candidates()
    assert await one.take(one.what) is None
    assert not shelf.path(acquired).exists()
    assert await collector.candidates() == []
