"""The pool as containers need it: opened when the first image is made of a template, or the first tree is carried."""

from __future__ import annotations

import asyncio
from pathlib import Path

from paddock.backends.jail import KeeperClient
from paddock.model import Template
from paddock.storage import Templates

from ._carry import Carrier, Porters

_TOOLS = "host"
"""The template of the jails that carry: it has a Python with a library."""


class Storage:
    def __init__(self, porters: Porters, descriptor: int, templates: Templates) -> None:
        self.porters, self._templates = porters, templates
        self.descriptor, self.pool = descriptor, templates.pool
        self.carrier = Carrier(porters, self.pool, self._tools)

    @classmethod
    async def open(cls, state_dir: Path, keeper: KeeperClient | None) -> Storage:
        """PaddockError."""
        porters = Porters(state_dir, keeper=keeper)
        try:
            templates = await porters.keeper.templates()
            return cls(porters, await porters.pool(), templates)
        except BaseException:
            await porters.aclose()
            raise

    async def aclose(self) -> None:
        await self.porters.aclose()

    async def _tools(self) -> Template:
        return await asyncio.to_thread(self._templates.get, _TOOLS)
