"""The pool as containers need it: opened when the first image is made of a template, or the first tree is carried."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from paddock.backends.jail import KeeperClient
from paddock.model import Template
from paddock.storage import Pool, Templates, open_pool, prepare

from ._carry import Carrier, Porters

_TOOLS = "host"
"""The template of the jails that carry: it has a Python with a library."""


class Storage:
    def __init__(self, porters: Porters, descriptor: int, pool: Pool, templates: Templates) -> None:
        self.porters, self._templates = porters, templates
        self.descriptor, self.pool = descriptor, pool
        self.carrier = Carrier(porters, pool, self._tools)

    @classmethod
    async def open(cls, state_dir: Path, keeper: KeeperClient | None) -> Storage:
        """PaddockError."""
        porters = Porters(state_dir, keeper=keeper)
        try:
            config = await asyncio.to_thread(prepare, state_dir)
            descriptor = await porters.pool()
            pool = open_pool(state_dir, config, os.dup(descriptor))
        except BaseException:
            await porters.aclose()
            raise
        return cls(porters, descriptor, pool, Templates(pool, state_dir))

    async def aclose(self) -> None:
        self._templates.close()
        self.pool.close()
        await self.porters.aclose()

    async def _tools(self) -> Template:
        return await asyncio.to_thread(self._templates.get, _TOOLS)
