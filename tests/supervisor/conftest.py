"""A supervisor with a pool and the `host` template, driven without a service."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from paddock.backends import Instance, SandboxPlan, TreeMount
from paddock.backends.jail import JailBackend
from paddock.errors import PaddockError
from paddock.linux import proc
from paddock.model import ExecId, ExecSpec, ExitStatus, IdPrefix, Limits, SandboxId, SandboxSpec, mint
from paddock.storage import Pool, Templates, open_pool, prepare
from paddock.supervisor import layout
from tests import pools

T = TypeVar("T")


class Yard:
    """Makes trees and plans, and sandboxes of them."""

    def __init__(self, state_dir: Path, backend: JailBackend, pool: Pool, templates: Templates) -> None:
        self.state_dir = state_dir
        self.backend = backend
        self.pool = pool
        self.templates = templates

    def plan(
        self,
        *,
        ttl_seconds: float = 600,
        limits: Limits | None = None,
        trees: tuple[TreeMount, ...] = (),
        exits: bool = False,
        idle_seconds: float | None = None,
        retention_seconds: float = layout.RETENTION_SECONDS,
    ) -> SandboxPlan:
        template = self.templates.get("host")
        id = SandboxId(mint(IdPrefix.SANDBOX))
        limits = limits or Limits()
        self.pool.create(id, layers=template.layers, limit_bytes=limits.disk_mib << 20)
        return SandboxPlan(
            id=id,
            hostname="yard",
            spec=SandboxSpec(limits=limits, idle_seconds=idle_seconds),
            template=template,
            tree=id,
            deadline=proc.boottime() + ttl_seconds,
            trees=trees,
            exits=exits,
            retention_seconds=retention_seconds,
        )

    async def create(self, **changes: Any) -> Instance:
        return await self.backend.create(self.plan(**changes))


def configure(state_dir: Path, driver: str | None = None, **changes: object) -> None:
    """Prepares a state directory whose next supervisor finds these values in `supervisor.json`."""
    prepare(state_dir, driver=driver)
    config = json.loads((state_dir / layout.SUPERVISOR_CONFIG).read_bytes())
    (state_dir / layout.SUPERVISOR_CONFIG).write_text(json.dumps({**config, **changes}))


def clear(yard: Yard) -> None:
    """Deletes all trees but templates, so that the next test can use their names."""
    for name in yard.pool.names():
        if not name.startswith(IdPrefix.TEMPLATE):
            with contextlib.suppress(PaddockError):  # a scene that failed has left a sandbox over it
                yard.pool.delete(name)
    shutil.rmtree(yard.state_dir / layout.REPOSITORIES, ignore_errors=True)


async def run(instance: Instance, *argv: str, user: str | None = None) -> tuple[ExitStatus, bytes]:
    """Runs to the end; what it printed to stdout and stderr together."""
    spec = ExecSpec(argv=("sh", "-c", 'exec 2>&1; "$@"', "sh", *argv), user=user)
    handle = await instance.start(spec, id=ExecId(mint(IdPrefix.EXEC)), background=False)
    assert handle.stdout is not None
    printed = b""
    try:
        while chunk := await handle.stdout.read():
            printed += chunk
        return await handle.wait(), printed
    finally:
        await handle.aclose()


@asynccontextmanager
async def open_yard(state_dir: Path, *, for_tests: bool = True) -> AsyncGenerator[Yard]:
    config = prepare(state_dir)
    async with AsyncExitStack() as stack:  # a descriptor of the pool that is left open here keeps its loop device
        backend = JailBackend(state_dir, for_tests=for_tests)
        stack.push_async_callback(backend.aclose)
        pool = open_pool(state_dir, config, os.dup(await pools.descriptor(backend)))
        stack.callback(pool.close)
        yield Yard(state_dir, backend, pool, Templates(pool))


Play = Callable[[Callable[[Yard], Awaitable[T]]], T]


def player(state_dir: Path, *, tidy: bool = False) -> Play[Any]:
    """`tidy`: no end that a scene leaves is there in the next one."""

    def perform(scene: Callable[[Yard], Awaitable[Any]]) -> Any:
        async def act() -> Any:
            async with open_yard(state_dir) as yard:
                try:
                    return await scene(yard)
                finally:
                    for id in (await yard.backend.state()).living if tidy else ():
                        await yard.backend.forget(id)

        return asyncio.run(act())

    return perform


@pytest.fixture
def play(module_state: Path) -> Play[Any]:
    """Runs a scene in a yard of its own, on the pool and the supervisor of the module."""
    return player(module_state, tidy=True)


@pytest.fixture
def private_play(state_dir: Path) -> Play[Any]:
    """Runs a scene on a pool and a supervisor of its own, which it may kill."""
    return player(state_dir)
