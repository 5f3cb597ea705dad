"""The native guest as a plain subprocess. Paths are taken below a directory of its own, lexically; that is no wall."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from paddock.backends._base import Capabilities, Ending, Exits, Paused, SandboxPlan
from paddock.backends.guest import PING, Place, check, program
from paddock.errors import AlreadyExists, Unsupported
from paddock.keeper import layout
from paddock.model import Check, ExecId, Level, SandboxId, User
from paddock.wire.guest import PingReply

from ._guest import Guest
from ._instance import ProcessInstance

_START_SECONDS = 30.0
_SOCKET = "user.sock"
_PATH = "/usr/local/bin:/usr/bin:/bin"


class ProcessBackend:
    """`state_dir` is made if it is missing. Sandboxes end with this process: no later one could find them."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._instances: dict[SandboxId, ProcessInstance] = {}

    @property
    def name(self) -> str:
        return "process"

    @property
    def level(self) -> Level:
        return Level.PROCESS

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(isolation=False)

    def probe(self) -> str | None:
        return None

    def checks(self) -> tuple[Check, ...]:
        return (Check(area="process", name="isolation", status="weak", detail="none: for tests only"), check())

    async def create(self, plan: SandboxPlan) -> ProcessInstance:
        if plan.trees:
            self.capabilities.require("trees", self.name)
        run = self._state_dir / layout.RUN / plan.id
        try:
            run.mkdir(parents=True, mode=0o700)
        except FileExistsError:
            raise AlreadyExists(f"there is a sandbox {plan.id} already") from None
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, run, ignore_errors=True)
            root = run / "root"
            user = plan.template.user(None) or User(name="user", uid=os.getuid(), gid=os.getgid(), home="/")
            for directory in (plan.template.workdir, user.home, "/tmp"):  # noqa: S108 - below the root of the sandbox
                (root / directory.lstrip("/")).mkdir(parents=True, exist_ok=True)
            instance = await self._start(plan, run, root, user, undo)
            undo.pop_all()
        self._instances[plan.id] = instance
        return instance

    async def _start(
        self, plan: SandboxPlan, run: Path, root: Path, user: User, undo: contextlib.ExitStack
    ) -> ProcessInstance:
        guest = await asyncio.to_thread(program)
        entrance = undo.enter_context(_listener(run, _SOCKET))
        env = {"PATH": _PATH, "HOME": str(root / user.home.lstrip("/")), "USER": user.name, "LOGNAME": user.name}
        env |= {"LANG": "C.UTF-8", **plan.template.env, **plan.spec.env}
        place = Place(workdir=plan.template.workdir, env=env, root=str(root))
        instance = ProcessInstance(plan, run, entrance, run / _SOCKET, place, partial(Guest, guest, entrance))
        try:
            async with asyncio.timeout(_START_SECONDS):
                await (await instance.connection("user")).open(PING).call(PingReply)
        except BaseException:  # also where the caller has left
            await asyncio.shield(instance.kill())
            raise
        return instance

    async def adopt(self, id: SandboxId) -> ProcessInstance | None:
        instance = self._instances.get(id)
        return instance if instance is not None and instance.ending is None else None

    async def exits(self, id: SandboxId, incarnation: int, *, make: bool = False) -> Exits | None:
        raise Unsupported("backend 'process' has no walls to make exits in", hint="use an isolating level")

    async def living(self) -> Mapping[SandboxId, Ending | None]:
        return {id: instance.ending for id, instance in self._instances.items()}

    async def kept(self) -> Mapping[ExecId, SandboxId]:
        return {}

    async def paused(self) -> Mapping[SandboxId, Paused]:
        return {}

    async def forget(self, id: SandboxId) -> None:
        instance = self._instances.get(id)
        if instance is not None and instance.ending is not None:
            del self._instances[id]

    async def aclose(self) -> None:
        for instance in self._instances.values():
            await instance.aclose()


def _listener(run: Path, name: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    directory = os.open(run, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{name}")
    finally:
        os.close(directory)
    listener.listen(128)
    return listener
