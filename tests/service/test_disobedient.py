"""A guest that answers, and does not end what it is told to end: its sandbox ends, and the caller is told why.

The sandbox is a real one; commands are asked of a peer beside it, which speaks the real frames and lies.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from service_world import ME, Rig
from test_over_guest import make, opened, sh

from paddock.backends.guest import GuestDefaults
from paddock.backends.guest.connection import GuestConnection
from paddock.backends.guest.instance import GuestInstance
from paddock.daemon.main.service import Service
from paddock.errors import SandboxDiedError
from paddock.model import ExecSpec, GetSandbox, RunExec, StartExec, State
from paddock.wire.guest import ExecReply, KillReply, Kind, Op, PingReply
from tests import frames
from tests.backends.peers import Peer, hello


async def run(service: Service, id: str, spec: ExecSpec) -> None:
    await service.perform(RunExec(sandbox=id, spec=spec), ME)


async def start(service: Service, id: str, spec: ExecSpec) -> None:
    await (await service.perform(StartExec(sandbox=id, spec=spec), ME)).wait()


WAYS = {"run": run, "start": start}


async def never_ends(peer: Peer, channel: int, code: int) -> None:
    if code == Op.PING:
        await peer.answer(channel, PingReply(pid=1).pack())
    elif code == Op.EXEC:
        await peer.say(frames.pack(Kind.REPLY, channel, ExecReply(pid=1).pack()))


async def says_it_did(peer: Peer, channel: int, code: int) -> None:
    await never_ends(peer, channel, code)
    if code == Op.KILL:
        await peer.answer(channel, KillReply(survivors=0).pack())


@pytest.mark.parametrize("serve", [never_ends, says_it_did])
@pytest.mark.parametrize("way", WAYS)
async def test_a_command_whose_time_is_over_ends_with_its_sandbox(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, serve: Any, way: str
) -> None:
    for name in ("patience_seconds", "answer_seconds"):
        monkeypatch.setattr(GuestConnection, name, 2.0)
    monkeypatch.setattr("paddock.daemon.sandboxes.guard._DEATH_SECONDS", 1.0)
    peers: list[tuple[Peer, asyncio.Task[None]]] = []

    async def lied_to(self: GuestInstance, identity: str) -> GuestConnection:
        if not peers:
            ours, theirs = socket.socketpair()
            peer = Peer(theirs, serve)
            peers.append((peer, asyncio.ensure_future(peer.run(hello()))))
            self._hold(identity, GuestConnection(ours, GuestDefaults()))
            self._connections[identity].descriptors = False
        return self._connections[identity]

    async with opened(rig) as service:
        id = await make(service)
        monkeypatch.setattr(GuestInstance, "connection", lied_to)
        async with asyncio.timeout(60):
            with pytest.raises(SandboxDiedError, match=r"command ex_.* (was not ended in 2 s|its end is not told)"):
                await WAYS[way](service, id, sh("x", timeout_seconds=0.1))
        ended = await service.perform(GetSandbox(sandbox=id), ME)
        assert ended.state is State.KILLED
        assert "command ex_" in (ended.reason or "")
        for peer, running in peers:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await peer.close()
