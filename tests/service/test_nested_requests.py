"""What requests from inside a sandbox leave behind in the daemon."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest
from service_world import ME, Rig

from paddock.daemon.sandboxes.nested import Request
from paddock.errors import FileError, InvalidArgumentError
from paddock.model import CreateSandbox, SandboxSpec, nested_principal
from paddock.wire import Frame, Kind


class FailedChannel:
    """Keeps its error and raises it, as the channels of a guest do."""

    error = FileError("no such file")

    async def perform(self, action: object, principal: object) -> None:
        raise self.error


async def test_a_refused_request_is_not_kept_until_a_collection(rig: Rig) -> None:
    async with rig.service() as service:
        outer = await service.perform(CreateSandbox(spec=SandboxSpec()), ME)
        nested: Any = service.running._nested  # pyright: ignore[reportPrivateUsage]
        nested._perform = FailedChannel().perform
        body = {"action": {"action": "file.write", "sandbox": "sb_x", "path": "p"}, "data": "eA=="}
        frame = Frame(Kind.OPEN, 1, json.dumps(body).encode(), ())
        gc.collect()
        gc.disable()
        try:
            kind, _ = await nested._answer(frame, nested_principal(outer.id))
            assert kind is Kind.ERROR
            assert not [thing for thing in gc.get_objects() if isinstance(thing, Request)]
        finally:
            gc.enable()


async def test_an_environment_larger_than_a_sandbox_takes_leaves_no_row(rig: Rig) -> None:
    async with rig.service() as service:
        with pytest.raises(InvalidArgumentError, match="env has 150001 characters"):
            await service.perform(CreateSandbox(spec=SandboxSpec(env={"A": "x" * 150_000})), ME)
        assert service.store.list(ended=True) == ()
