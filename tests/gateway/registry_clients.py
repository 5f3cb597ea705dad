"""Real clients, and requests by hand, of registries behind a gateway."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.gateway.registry_files import Outside, world_of
from tests.gateway.rig import Rig, running

COOLDOWN = ", cooldown_days: 7"
JSON = "application/vnd.pypi.simple.v1+json"


def slow(*values: object) -> ParameterSet:
    """Leave a case to `make test-all`. tests/gateway/test_registry_filters.py proves what each rule lets through."""
    return pytest.param(*values, marks=pytest.mark.slow)


def through(work: Callable[[Rig, Outside], Awaitable[None]], terms: str = COOLDOWN) -> None:
    async def run() -> None:
        async with running(world_of(terms)) as world:
            outside = Outside()
            await outside.join(world)
            await work(world, outside)

    asyncio.run(run())


async def fetch(world: Rig, host: str, path: str, *fields: str) -> tuple[int, bytes, bytes]:
    world.aim(host, 443)
    more = "".join(f"{field}\r\n" for field in fields)
    reply = await world.ask(
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\r\n".encode(), tls=host
    )
    head, _, body = reply.partition(b"\r\n\r\n")
    return int(head.split()[1]), head, body


async def client(world: Rig, directory: Path, *command: str, **more: str) -> tuple[int, str]:
    world.origin = ("198.18.0.1", 3128)
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "PIP_CONFIG_FILE": os.devnull} | more
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=directory,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), 120)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, out.decode()
