"""Sandboxes of the process backend."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from paddock.backends.base import SandboxPlan
from paddock.backends.guest.instance import GuestInstance
from paddock.backends.process import ProcessBackend
from paddock.model import IdPrefix, SandboxId, SandboxSpec, Template, User, mint

TEMPLATE = Template(
    name="host",
    digest="d",
    layers=(),
    host_usr=True,
    users=(
        User(name="user", uid=1000, gid=1000, home="/home/user"),
        User(name="root", uid=0, gid=0, home="/root"),
    ),
    default_user="user",
)


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def plan(seconds: float = 120) -> SandboxPlan:
    id = SandboxId(mint(IdPrefix.SANDBOX))
    return SandboxPlan(
        id=id, hostname="box", spec=SandboxSpec(), template=TEMPLATE, tree="sb_x", deadline=boottime() + seconds
    )


@asynccontextmanager
async def sandbox(directory: Path, seconds: float = 120) -> AsyncGenerator[GuestInstance]:
    backend = ProcessBackend(directory)
    instance = await backend.create(plan(seconds))
    try:
        yield instance
    finally:
        await instance.kill()
        await backend.aclose()
