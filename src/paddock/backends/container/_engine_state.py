"""What the engine says of containers, and how one goes."""

from __future__ import annotations

import asyncio

import msgspec

from paddock.backends._base import Ending
from paddock.errors import PlatformError
from paddock.model import Limit, SandboxId

from ._engine import Engine
from ._options import OWNER, SANDBOX

_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class State(msgspec.Struct, frozen=True):
    Status: str = ""
    Running: bool = False
    OOMKilled: bool = False
    ExitCode: int = 0
    Error: str = ""


class _Inspected(msgspec.Struct, frozen=True):
    State: State


class _Listed(msgspec.Struct, frozen=True):
    Labels: dict[str, str] | None = None


async def state_of(engine: Engine, name: str) -> State | None:
    """None: there is no such container."""
    found = await engine.get(f"/containers/{name}/json", _Inspected)
    return None if found is None else found.State


async def at_rest(engine: Engine, name: str) -> bool:
    """Once nobody cleans up after its death any more, under whom its files would go away. False: it is not there."""
    for pause in (*_PAUSES, 0.0):
        state = await state_of(engine, name)
        if state is None or state.Status not in ("running", "stopping", "stopped"):
            return state is not None
        await asyncio.sleep(pause)
    return True


async def how_it_ended(engine: Engine, name: str) -> str | None:
    """None while it runs."""
    state = await state_of(engine, name)
    if state is None:
        return "somebody removed it"
    return None if state.Running else f"{state.Error or state.Status} ({state.ExitCode})"


async def ending_of(engine: Engine, name: str) -> Ending:
    """Of one that has ended by itself."""
    state = await state_of(engine, name)
    if state is None:
        return Ending(limit=None, reason="its container was removed by somebody else")
    if state.OOMKilled:
        return Ending(limit=Limit.MEMORY, reason="its memory was used up")
    return Ending(limit=None, reason=f"its pid 1 ended with {state.ExitCode}")


async def owned(engine: Engine, owner: str) -> list[SandboxId]:
    """Those that carry the label of `owner`."""
    filters = msgspec.json.encode({"label": [f"{OWNER}={owner}"]}).decode()
    listed = await engine.get("/containers/json", list[_Listed], all="1", filters=filters)
    names = ((one.Labels or {}).get(SANDBOX, "") for one in listed or ())
    return [SandboxId(name) for name in names if name]


async def remove(engine: Engine, name: str) -> None:
    """Nothing if it is not there."""
    for pause in (*_PAUSES, None):
        try:
            await engine.delete(f"/containers/{name}", force="1", v="1")
            return
        except PlatformError:
            # Podman's own process that cleans up after a death is at work, or another service removes it.
            if await state_of(engine, name) is None:
                return
            if pause is None:
                raise
            await asyncio.sleep(pause)
