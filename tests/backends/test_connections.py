"""What becomes of descriptors and connections when somebody goes away at the wrong moment."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from paddock.backends.guest import PING, GuestDefaults
from paddock.backends.guest.connection import GuestConnection
from paddock.backends.guest.instance import GuestInstance
from paddock.backends.process import ProcessBackend
from paddock.errors import SandboxDiedError, UnsupportedError
from paddock.model import SandboxId, StatFile, Template, User
from paddock.wire.guest import Kind
from tests.backends.boxes import TEMPLATE, plan
from tests.orphans import descendants, descriptors, wait_until

HERE = GuestDefaults()


def instance_of(
    connect: Callable[[str], Awaitable[GuestConnection]], template: Template = TEMPLATE, *, root_user: bool = False
) -> GuestInstance:
    instance = GuestInstance(SandboxId("sb_x"), template, root_user=root_user)
    instance.connect = connect  # type: ignore[method-assign]
    return instance


def test_a_connection_that_is_being_made_when_all_are_closed_is_closed_too() -> None:
    made: list[GuestConnection] = []

    async def main() -> None:
        go = asyncio.Event()
        ours, theirs = socket.socketpair()

        async def connect(identity: str) -> GuestConnection:
            await go.wait()
            made.append(GuestConnection(ours, HERE))
            return made[0]

        instance = instance_of(connect)
        connecting = asyncio.ensure_future(instance.connection("user"))
        await asyncio.sleep(0)
        instance.close_connections()
        go.set()
        with pytest.raises(SandboxDiedError):
            await connecting
        assert made[0].closed
        theirs.close()

    asyncio.run(main())


def test_a_connection_that_is_lost_while_it_is_made_is_not_the_one_of_the_next_call() -> None:
    async def main() -> None:
        lost, kept = socket.socketpair(), socket.socketpair()
        lost[1].close()
        made = [lost[0], kept[0]]

        async def connect(identity: str) -> GuestConnection:
            if identity == "init":
                raise ConnectionRefusedError
            return GuestConnection(made.pop(0), HERE)

        instance = instance_of(connect)
        with pytest.raises(SandboxDiedError, match="went away"):
            await instance.connection("user")
        connection = await instance.connection("user")
        assert not connection.closed
        connection.close()
        kept[1].close()

    asyncio.run(main())


@pytest.mark.parametrize("waits", [False, True])
def test_the_descriptors_of_a_request_are_closed_when_it_is_sent_or_never_will_be(waits: bool) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        connection = GuestConnection(ours, HERE)
        while waits and not connection._unsent:  # until nothing more can be sent at once
            connection.send(Kind.DATA, 1, bytes(60_000))
        before = descriptors()
        connection.open(PING, fds=[os.open("/dev/null", os.O_RDONLY) for _ in range(4)])
        assert (len(descriptors() - before) == 4) == waits
        connection.close()
        with pytest.raises(SandboxDiedError):
            connection.open(PING, fds=[os.open("/dev/null", os.O_RDONLY)])
        theirs.close()
        assert wait_until(lambda: descriptors() <= before)

    asyncio.run(main())


@pytest.mark.parametrize("turns", range(4))
def test_a_create_of_the_process_backend_that_is_cancelled_leaves_no_process(tmp_path, turns: int) -> None:
    async def main() -> None:
        backend = ProcessBackend(tmp_path)
        creating = asyncio.ensure_future(backend.create(plan()))
        for _ in range(turns):
            await asyncio.sleep(0)
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        # Before the loop ends, and with it all that was forgotten in it.
        assert await asyncio.to_thread(wait_until, lambda: set(descendants(os.getpid())) <= before)
        assert (await backend.state()).living == {}
        await backend.aclose()

    before = set(descendants(os.getpid()))
    asyncio.run(main())
    assert not (tmp_path / "run").exists() or os.listdir(tmp_path / "run") == []


def test_a_user_without_an_agent_touches_no_files_and_is_told_what_to_do() -> None:
    users = (*TEMPLATE.users, User(name="guest", uid=2000, gid=2000, home="/"))
    template = msgspec.structs.replace(TEMPLATE, users=users)

    async def connect(identity: str) -> GuestConnection:
        raise AssertionError(f"nobody is to be asked, least of all {identity}")

    async def main() -> None:
        as_root = instance_of(connect, template, root_user=True)
        for user in ("guest", "2000"):
            with pytest.raises(UnsupportedError, match=r"as 'guest'.* root and 'user'") as refused:
                await as_root.file(StatFile(sandbox="", path="/", user=user))
            assert refused.value.hint is not None
        ordinary = instance_of(connect, template)
        for user in ("root", "guest"):
            with pytest.raises(UnsupportedError, match="range of ids"):
                await ordinary.file(StatFile(sandbox="", path="/", user=user))

    asyncio.run(main())
