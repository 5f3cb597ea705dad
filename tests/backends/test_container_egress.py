"""Ways out of a container: whose they are when services come and go."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncGenerator

import msgspec
import pytest

from paddock.backends import Exits
from paddock.backends.container import ContainerBackend, _egress
from paddock.errors import PlatformError, SandboxDiedError, UnsupportedError
from paddock.model import SandboxSpec
from paddock.supervisor._exits import TCP_PORT
from tests.backends.containers import ContainerHarness
from tests.backends.test_container_engine import backend_of, boxed, left
from tests.conformance import Box
from tests.orphans import descriptors, none_lost


@contextlib.asynccontextmanager
async def opened(harness: ContainerHarness, **more: object) -> AsyncGenerator[tuple[ContainerBackend, Box, Exits]]:
    async with backend_of(harness) as backend:
        plan = msgspec.structs.replace(await harness.plan(SandboxSpec()), exits=True, **more)
        instance = await backend.create(plan)
        try:
            exits = await backend.exits(plan.id, 0)
            assert exits is not None
            yield backend, Box(instance, plan), exits
        finally:
            await instance.kill()
            await instance.aclose()


def close(exits: Exits) -> None:
    for one in exits.detach():
        os.close(one)


async def _arrives(box: Box, exits: Exits) -> bool:
    loop = asyncio.get_running_loop()
    exits.sockets[0].setblocking(False)
    calling = asyncio.ensure_future(
        box.python("import socket; socket.create_connection(('192.0.2.1', 80), 60).recv(1)")
    )
    async with asyncio.timeout(60):
        came, _ = await loop.sock_accept(exits.sockets[0])
    came.close()
    return (await calling).status.code == 0


def test_a_later_service_has_them_when_nobody_else_has(containers: ContainerHarness) -> None:
    async def main() -> None:
        async with opened(containers) as (first, box, exits), backend_of(containers) as later:
            assert await _arrives(box, exits)
            assert await later.exits(box.plan.id, 0) is None  # a gateway may have them
            close(exits)
            first._running[box.plan.id, 0].egress.close()  # as if it were dead
            found = await later.exits(box.plan.id, 0)
            assert found is not None
            assert await _arrives(box, found)
            close(found)

    asyncio.run(main())


def test_one_that_listens_at_a_port_of_the_gateway_gets_no_way_out(containers: ContainerHarness) -> None:
    async def main() -> None:
        async with boxed(containers) as (backend, box):
            listening = await box.start(
                "python3",
                "-c",
                f"import socket; s = socket.create_server(('127.0.0.1', {TCP_PORT})); print('up', flush=True)\n"
                "s.accept()",
            )
            assert listening.stdout is not None
            assert await listening.stdout.read() == b"up\n"
            with pytest.raises(UnsupportedError, match="without a way out"):
                await backend.exits(box.plan.id, 0)
            with pytest.raises(PlatformError, match="listens at a port"):
                await backend.exits(box.plan.id, 0, make=True)
            with pytest.raises(SandboxDiedError):
                await backend.exits(box.plan.id, 1)
            await listening.aclose()

    asyncio.run(main())


def test_what_cannot_be_protected_leaves_nothing(containers: ContainerHarness) -> None:
    async def main() -> None:
        async with opened(containers) as (_, box, exits):
            close(exits)
            assert (await box.sh("test -L /bin")).status.code == 0
            before = len(descriptors())
            with pytest.raises(PlatformError, match="a symbolic link on the way"):
                async with opened(containers, protect=("/bin/sh",)):
                    pass
            assert left(containers) == [box.plan.id]
            assert await asyncio.to_thread(none_lost, before + 2)  # the second backend's supervisor and engine

    asyncio.run(main())


@pytest.mark.root
def test_nobody_is_sent_into_the_machines_own_network() -> None:
    """A container has died, and its number is that of a program of the machine's: nothing of the machine is changed."""
    with subprocess.Popen(["/bin/sleep", "600"]) as other:
        try:
            asked = {
                "pid": other.pid,
                "shown": "/",
                "exits": False,
                "again": False,
                "protect": [],
                "mounts": [],
                "masks": {},
            }
            with pytest.raises(PlatformError, match="in the machine's own network"):
                _egress.NamespaceEntry().send(other.pid, asked, ())
        finally:
            other.kill()
