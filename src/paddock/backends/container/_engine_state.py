"""What the engine says of containers, and how one goes."""

from __future__ import annotations

import asyncio
import signal

import msgspec

from paddock.backends._base import Ending
from paddock.errors import PlatformError
from paddock.model import Limit, SandboxId

from ._engine import Engine
from ._options import OWNER, SANDBOX

_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_ENDING = ("running", "stopping", "removing")
"""How it ended is not known yet, whatever the exit code says."""


class State(msgspec.Struct, frozen=True):
    Status: str = ""
    Running: bool = False
    OOMKilled: bool = False
    ExitCode: int = 0
    Error: str = ""


class _Inspected(msgspec.Struct, frozen=True):
    State: State


class _Made(msgspec.Struct, frozen=True):
    Id: str = ""


class _Listed(msgspec.Struct, frozen=True):
    Id: str
    Labels: dict[str, str] | None = None


async def create(engine: Engine, name: str, asked: object) -> str:
    """The engine's own id for it: a name may be another's by and by. PlatformError."""
    return msgspec.convert(await engine.post("/containers/create", asked, name=name) or {}, _Made).Id


async def state_of(engine: Engine, name: str) -> State | None:
    """None: there is no such container."""
    path = f"/containers/{name}/json"
    try:
        found = await engine.get(path, _Inspected)
    except PlatformError as error:
        if error.details.get("engine_status") != 500:
            raise
        found = await engine.get(path, _Inspected)  # Podman fails if it is removed while it is looked at
    return None if found is None else found.State


async def _settled(engine: Engine, name: str, *passing: str) -> State | None:
    """Once it is in no state of these, as far as that is worth waiting for."""
    state = await state_of(engine, name)
    for pause in _PAUSES:
        if state is None or state.Status not in passing:
            break
        await asyncio.sleep(pause)
        state = await state_of(engine, name)
    return state


async def at_rest(engine: Engine, name: str) -> bool:
    """Once nobody cleans up after its death any more, under whom its files would go away. False: it is not there."""
    return await _settled(engine, name, *_ENDING, "stopped") is not None


async def how_it_ended(engine: Engine, name: str) -> str | None:
    """None while it runs."""
    state = await state_of(engine, name)
    if state is None:
        return "somebody removed it"
    return None if state.Running else f"{state.Error or state.Status} ({state.ExitCode})"


async def ending_of(engine: Engine, name: str) -> Ending:
    """Of one that has ended by itself, or that somebody else has ended."""
    state = await _settled(engine, name, *_ENDING)
    if state is None:
        return Ending(limit=None, reason="its container was removed by somebody else")
    if state.OOMKilled:
        return Ending(limit=Limit.MEMORY, reason="its memory was used up")
    if state.ExitCode == 128 + signal.SIGKILL:
        # Nothing inside can do that. An engine that removes a container kills it first, and lists it a while longer.
        return Ending(limit=None, reason="its pid 1 was killed from outside: by somebody else, or for lack of memory")
    return Ending(limit=None, reason=f"its pid 1 ended with {state.ExitCode}")


async def owned(engine: Engine, owner: str) -> list[tuple[SandboxId, str]]:
    """Those that carry the label of `owner`, each with the engine's own id for it."""
    filters = msgspec.json.encode({"label": [f"{OWNER}={owner}"]}).decode()
    listed = await engine.get("/containers/json", list[_Listed], all="1", filters=filters)
    found = (((one.Labels or {}).get(SANDBOX, ""), one.Id) for one in listed or ())
    return [(SandboxId(name), id) for name, id in found if name]


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
