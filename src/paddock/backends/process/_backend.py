"""The guest as a plain subprocess. Paths are taken below a directory of its own, lexically; that is no wall."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import paddock.guest
from paddock.backends._base import Capabilities, Ending, Exits, Paused, SandboxPlan
from paddock.errors import AlreadyExists, InternalError, Unsupported
from paddock.keeper import layout
from paddock.model import Check, Level, SandboxId, User

from ._instance import ProcessInstance

_START_SECONDS = 30.0
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
        return (Check(area="process", name="isolation", status="weak", detail="none: for tests only"),)

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
            process, host = await self._start(plan, run, root, user)
            undo.pop_all()
        instance = ProcessInstance(plan, process, host, run)
        self._instances[plan.id] = instance
        return instance

    async def _start(self, plan: SandboxPlan, run: Path, root: Path, user: User) -> tuple[subprocess.Popen[bytes], int]:
        """The guest, and a pipe of which it is the writer: it ends when nobody can read it, so with this process."""
        with contextlib.ExitStack() as stack:
            listeners = {name: stack.enter_context(_listener(run, name)) for name in ("init", "user")}
            reader, writer = os.pipe2(os.O_CLOEXEC)
            undo = stack.enter_context(contextlib.ExitStack())
            undo.callback(os.close, reader)
            config = {
                "control": listeners["init"].fileno(),
                "deadline": plan.deadline,
                "grace_seconds": 0,
                "host": writer,
                "fatal_imports": True,
                "agents": {"user": _agent(plan, listeners["user"].fileno(), root, user)},
            }
            try:
                process = subprocess.Popen(  # noqa: ASYNC220 - milliseconds, and no thread watches over it
                    [sys.executable, "-I", "-S", str(Path(paddock.guest.__file__).parent), json.dumps(config)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={},
                    pass_fds=[writer, *(listener.fileno() for listener in listeners.values())],
                    start_new_session=True,
                )
            finally:
                os.close(writer)
            try:
                async with asyncio.timeout(_START_SECONDS):
                    if await _first_bytes(reader) != b"ready\n":
                        raise InternalError("the guest did not start", hint="its last words are on stderr")
            except BaseException:  # also where the caller has left
                process.terminate()  # and what it has started
                process.wait()
                raise
            undo.pop_all()
            return process, reader

    async def adopt(self, id: SandboxId) -> ProcessInstance | None:
        instance = self._instances.get(id)
        return instance if instance is not None and instance.ending is None else None

    async def exits(self, id: SandboxId, incarnation: int, *, make: bool = False) -> Exits | None:
        raise Unsupported("backend 'process' has no walls to make exits in", hint="use an isolating level")

    async def living(self) -> Mapping[SandboxId, Ending | None]:
        return {id: instance.ending for id, instance in self._instances.items()}

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
        listener.bind(f"/proc/self/fd/{directory}/{name}.sock")
    finally:
        os.close(directory)
    listener.listen(128)
    return listener


def _agent(plan: SandboxPlan, listener: int, root: Path, user: User) -> dict[str, object]:
    home = str(root / user.home.lstrip("/"))
    env = {"PATH": _PATH, "HOME": home, "USER": user.name, "LOGNAME": user.name, "LANG": "C.UTF-8"}
    return {
        "listen": listener,
        "user": {"name": user.name, "uid": os.getuid(), "gid": os.getgid(), "home": user.home},
        "workdir": plan.template.workdir,
        "exec_dir": "/.execs",
        "env": {**env, **plan.template.env, **plan.spec.env},
        "root": str(root),
    }


async def _first_bytes(fd: int) -> bytes:
    """What comes first; b"" if the other side closes."""
    loop = asyncio.get_running_loop()
    there = loop.create_future()
    loop.add_reader(fd, lambda: there.done() or there.set_result(None))
    try:
        await there
    finally:
        loop.remove_reader(fd)
    return os.read(fd, 64)
