"""Telling pid 1 what it is: its sockets and its orders, through a socket that is there for that one call.

The host listens before the container starts. What the guest serves on are sockets of the host's, given away as
descriptors, as a keeper does it: any service connects to them, nobody inside sees them, and no path is looked up in a
place that the sandbox can write.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import struct
from collections.abc import Awaitable, Callable, Generator
from functools import cache
from pathlib import Path
from typing import Any

from paddock.backends._base import SandboxPlan
from paddock.backends._hints import hints
from paddock.backends._trusted import environment
from paddock.errors import PlatformError
from paddock.guest._birth import READY
from paddock.guest._frames import dump_json
from paddock.linux import seccomp_profile
from paddock.model import MountMode, User

from ._options import resource_limits
from ._records import BIRTH
from ._ways import TRUSTED

IDENTITIES = ("init", "user", "root", "carrier")
EXEC_DIRECTORY = ".paddock/exec"
_BACKLOG = 128
_LOOK_SECONDS = 5.0
_SECONDS = 60.0
_WORDS = 600
Alive = Callable[[], Awaitable[str | None]]
"""None while the container runs; else how it ended."""


class Birth:
    """The sockets of one container that is to be."""

    def __init__(self, place: Path, listeners: list[socket.socket], door: socket.socket) -> None:
        self._place, self._listeners, self._door = place, listeners, door

    async def call(
        self, orders: Any, alive: Alive, before: Callable[[int], Awaitable[None]], starting: asyncio.Task[Any]
    ) -> int:
        """Waits for pid 1 to call, tells it all, and returns its number here when it serves and `starting`, which has
        the engine start it, is done. `before` is done with that number before it is told: nothing foreign runs yet.
        PlatformError."""
        try:
            async with asyncio.timeout(_SECONDS):
                guest = await self._accept(alive, starting)
                with guest:
                    pid = struct.unpack("=3i", guest.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
                    await before(pid)
                    await self._tell(guest, orders)
                    await starting
                    return pid
        except TimeoutError:
            raise PlatformError(
                f"the guest in the container did not begin within {_SECONDS:g} s", hint="paddock doctor"
            ) from None

    async def _accept(self, alive: Alive, starting: asyncio.Task[Any]) -> socket.socket:
        """There is no socket of its before it is returned, nor is the door watched once it may be closed."""
        loop = asyncio.get_running_loop()
        called = asyncio.Event()
        loop.add_reader(self._door, called.set)
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
            loop.remove_reader(self._door)
        guest, _ = self._door.accept()
        guest.setblocking(False)
        return guest

    async def _tell(self, guest: socket.socket, orders: Any) -> None:
        loop = asyncio.get_running_loop()
        text = dump_json(orders)
        socket.send_fds(guest, [len(text).to_bytes(4, "big")], [listener.fileno() for listener in self._listeners])
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # what it said before is read
            await loop.sock_sendall(guest, text)
        said = b""
        while said != READY and len(said) < _WORDS and (part := await loop.sock_recv(guest, _WORDS)):
            said += part
        if said != READY:
            words = said.decode("ascii", "replace").strip() or "it ended without a word"
            raise PlatformError(f"the guest could not begin in the container: {words}", hint="paddock doctor")


@contextlib.contextmanager
def expecting(place: Path) -> Generator[Birth]:
    """Sockets in `place` for each identity, and one in its `birth` for the call, which goes with the block."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(_listener(place, f"{name}.sock")) for name in IDENTITIES]
        door = stack.enter_context(_listener(place / BIRTH, "birth.sock"))
        stack.callback((place / BIRTH / "birth.sock").unlink, missing_ok=True)
        # Whichever uid of the machine pid 1 has: the directory is seen in this one container alone.
        (place / BIRTH / "birth.sock").chmod(0o666)
        yield Birth(place, listeners, door)


def orders(plan: SandboxPlan, held: frozenset[str]) -> Any:
    """What `guest/_birth.py` is told."""
    template = plan.template
    env = {**hints(plan.spec.limits), **(environment(TRUSTED) if plan.exits else {}), **template.env, **plan.spec.env}
    user = template.user(None)
    assert user is not None
    root = template.user("0") or User(name="root", uid=0, gid=0, home="/root")
    owners = all(mount.mode is not MountMode.READ_WRITE for mount in plan.spec.mounts)
    return {
        "init": 0,
        "deadline": plan.deadline,
        "idle": plan.spec.idle_seconds or 0.0,
        "retention": plan.retention_seconds,
        "limits": {
            str(getattr(resource, f"RLIMIT_{name.upper()}")): value
            for name, value in resource_limits(plan, held).items()
        },
        "agents": {
            "user": _agent(plan, 1, user, env, _filter(owners)),
            "root": {**_agent(plan, 2, root, env, _filter(owners)), "may_switch_user": True},
            "carrier": _agent(plan, 3, root, {}, _filter(owners=True)),  # lays out the files of a copy: see `_lay`
        },
    }


@cache
def _filter(owners: bool) -> str:
    """Build the jail's own filter. It refuses chown(2) without `owners`: beside a directory of the host that can be
    written, since root inside a container has its capabilities in the machine's first user namespace."""
    return seccomp_profile.build(os.uname().machine, owners=owners).hex()


def _agent(plan: SandboxPlan, listener: int, user: User, env: dict[str, str], filter: str) -> dict[str, Any]:
    return {
        "listen": listener,
        "user": _entry(user),
        "workdir": plan.template.workdir,
        "exec_dir": f"{user.home.rstrip('/')}/{EXEC_DIRECTORY}",
        "env": {**env, "HOME": user.home, "USER": user.name, "LOGNAME": user.name},
        "users": [_entry(other) for other in plan.template.users],
        "may_switch_user": False,
        "filter": filter,
    }


def _entry(user: User) -> dict[str, Any]:
    return {"name": user.name, "uid": user.uid, "gid": user.gid, "home": user.home}


def _listener(directory: Path, name: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            listener.bind(f"/proc/self/fd/{fd}/{name}")  # the path may be longer than an address
        finally:
            os.close(fd)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
