"""Hands its sockets and first orders to pid 1, through a socket for that single call.

The host listens before the container starts. The guest serves on sockets of the host, passed as descriptors, as a
supervisor does. Any service can connect to them, and no program inside sees them. paddock looks up no path in a
directory that the sandbox can write.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import struct
from collections.abc import Awaitable, Callable, Generator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from paddock.backends.base import SandboxPlan
from paddock.backends.guest import EmptyBody, GuestDefaults, Request, user_of
from paddock.backends.guest import orders as pid1
from paddock.backends.guest.connection import GuestConnection
from paddock.errors import PaddockError, PlatformError
from paddock.linux import local_sockets, seccomp_profile
from paddock.model import MountMode

from ._options import resource_limits
from ._records import BIRTH

IDENTITIES = ("user", "root", "carrier")
CONTROL = "init"
"""The socket of pid 1 itself."""
OOM_SCORE = 500
"""OOM score of commands: if memory is short, they die before their agent."""
_LOOK_SECONDS = 5.0
_SECONDS = 60.0
Alive = Callable[[], Awaitable[str | None]]
"""Returns None while the container runs, or the reason of its end."""
Orders = Mapping[str, Request]
"""Orders by the socket that comes with each, in sequence."""


class GuestStart:
    """The sockets of one container that is to be."""

    def __init__(self, listeners: Mapping[str, socket.socket], birth: socket.socket) -> None:
        self._listeners, self._birth = listeners, birth

    async def call(
        self, orders: Orders, alive: Alive, before: Callable[[int], Awaitable[None]], starting: asyncio.Task[Any]
    ) -> int:
        """Wait for pid 1 to call, send all orders, and return its pid.

        `starting` is the engine's start of it.

        It returns when pid 1 serves and `starting` is complete. It runs `before` with the pid before the orders: no
        untrusted program runs until then. Raises PlatformError.
        """
        try:
            async with asyncio.timeout(_SECONDS):
                guest = await self._accept(alive, starting)
                pid = struct.unpack("=3i", guest.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
                with contextlib.closing(GuestConnection(guest, GuestDefaults())) as connection:
                    await before(pid)
                    await self._tell(connection, orders)
                    await starting
                    return pid
        except TimeoutError:
            raise PlatformError(
                f"the guest in the container did not begin within {_SECONDS:g} s", hint="paddock doctor"
            ) from None

    async def _accept(self, alive: Alive, starting: asyncio.Task[Any]) -> socket.socket:
        """Accept the call of pid 1.

        It stops watching the listener before that may close, and creates no socket before its return.
        """
        loop = asyncio.get_running_loop()
        called = asyncio.Event()
        loop.add_reader(self._birth, called.set)
        calling = asyncio.ensure_future(called.wait())
        try:
            await asyncio.wait((calling, starting), return_when="FIRST_COMPLETED")
            if starting.done():
                starting.result()
            while not (await asyncio.wait((calling,), timeout=_LOOK_SECONDS))[0]:
                if starting.done() and (ended := await alive()) is not None:
                    raise PlatformError(f"the guest did not begin in the container: {ended}", hint="paddock doctor")
        finally:
            calling.cancel()
            loop.remove_reader(self._birth)
        guest, _ = self._birth.accept()
        guest.setblocking(False)
        return guest

    async def _tell(self, guest: GuestConnection, by_name: Orders) -> None:
        try:
            for name, order in by_name.items():
                await guest.open(order, fds=[os.dup(self._listeners[name].fileno())]).call(EmptyBody)
        except PaddockError as error:
            raise PlatformError(
                f"the guest could not begin in the container: {error.message}", hint="paddock doctor"
            ) from None


@contextlib.contextmanager
def expecting(place: Path) -> Generator[GuestStart]:
    """Sockets in `place` for each identity, and one in its `birth` for the call, which goes with the block."""
    with contextlib.ExitStack() as stack:
        names = (*IDENTITIES, CONTROL)
        listeners = {name: stack.enter_context(local_sockets.listen(place, f"{name}.sock")) for name in names}
        birth = stack.enter_context(local_sockets.listen(place / BIRTH, "birth.sock"))
        for listener in (*listeners.values(), birth):
            listener.setblocking(False)
        stack.callback((place / BIRTH / "birth.sock").unlink, missing_ok=True)
        # All uids may connect, because pid 1 may have any. Only this one container sees the directory.
        (place / BIRTH / "birth.sock").chmod(0o666)
        yield GuestStart(listeners, birth)


def orders(plan: SandboxPlan, held: frozenset[str]) -> Orders:
    """Return the order for each socket. The last one makes pid 1 begin."""
    template = plan.template
    user, root = user_of("user", template), user_of("root", template)
    filter = _filter(all(mount.mode is not MountMode.READ_WRITE for mount in plan.spec.mounts))
    limits = {getattr(resource, f"RLIMIT_{name.upper()}"): value for name, value in resource_limits(plan, held).items()}
    return {
        "user": pid1.identity("user", user, eager=True, filter=filter),
        "root": pid1.identity("root", root, filter=filter),
        # It carries files while all other processes are paused.
        "carrier": pid1.identity("carrier", root, attending=True, filter=_filter(owners=True)),
        CONTROL: pid1.begin(
            deadline=plan.deadline,
            idle=plan.spec.idle_seconds or 0.0,
            retention=plan.retention_seconds,
            limits=limits,
        ),
    }


@cache
def _filter(owners: bool) -> bytes:
    """Build the jail's own filter.

    Without `owners` it refuses chown(2): with a writable directory of the host, root inside would have its capabilities
    in the machine's first user namespace.
    """
    return seccomp_profile.build(os.uname().machine, owners=owners)
