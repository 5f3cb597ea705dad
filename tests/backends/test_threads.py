"""Who waits for others takes no thread from them: here there is one thread for all, and each has to come to its end."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paddock.backends.container._records import Records
from paddock.backends.threads import in_its_own_thread
from paddock.model import SandboxId
from paddock.storage.pool.worker import Worker
from paddock.storage.templates.recipe import Progress, Recipe
from tests.backends.test_vmm import harness  # noqa: F401 (a fixture)
from tests.backends.vmms import VmmHarness

_SECONDS = 60


def with_one_thread(play: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        with ThreadPoolExecutor(1) as executor:
            asyncio.get_running_loop().set_default_executor(executor)
            async with asyncio.timeout(_SECONDS):
                await play()

    asyncio.run(main())


def test_what_is_baked_has_the_threads_that_it_needs_however_many_wait_for_it(harness: VmmHarness) -> None:  # noqa: F811
    async def play() -> None:
        backend = harness.backend()
        loop = asyncio.get_running_loop()
        booted: list[str] = []

        async def boot() -> None:
            await asyncio.to_thread(booted.append, "once")

        def fill(root: int, worker: Worker, progress: Progress) -> None:
            asyncio.run_coroutine_threadsafe(boot(), loop).result(_SECONDS)

        recipe = Recipe(name="kit-test", facts=(secrets.token_hex(8),), fill=fill, host_usr=False, env={})
        try:
            made = await asyncio.gather(*(backend.baked(recipe) for _ in range(3)))
        finally:
            await backend.aclose()
            harness.pool.delete(recipe.tree)
        assert set(made) == {recipe.tree}
        assert booted == ["once"]

    with_one_thread(play)


def test_who_carries_a_container_has_the_threads_that_he_needs_however_many_wait(tmp_path: Path) -> None:
    id = SandboxId("sb_0000000000000001")
    (tmp_path / id).mkdir()
    records, carried = Records(tmp_path), list[int]()

    async def play() -> None:
        async def carry(number: int) -> None:
            async with records.alone(id, "hold"):
                carried.append(number)
                await asyncio.to_thread(carried.append, number)

        await asyncio.gather(*map(carry, range(3)))

    with_one_thread(play)
    assert carried in [[a, a, b, b, c, c] for a in range(3) for b in range(3) for c in range(3)]


def test_what_comes_of_a_thread_is_what_the_work_returns_or_raises() -> None:
    async def play() -> None:
        assert await in_its_own_thread(int, "7", base=8) == 7
        with pytest.raises(ValueError, match="invalid literal"):
            await in_its_own_thread(int, "nine")

    with_one_thread(play)
