"""Memory of machines, as trees of the pool (`pool/memories.py`): the image at a machine's start, and a new one for each
save.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress

from paddock.backends.threads import in_thread
from paddock.errors import InvalidStateError, NotFoundError, logged
from paddock.storage.pool.memories import PREFIX, Image, Memories

Save = Callable[[str, int], AbstractAsyncContextManager[None]]
"""Has a machine stand for a block, its memory written into a descriptor, as the image of that name."""


class Images:
    def __init__(self, memories: Memories) -> None:
        self._memories = memories

    async def for_start(self, tree: str, baked: str) -> str | None:
        """Return the image of the state in this tree, or None if it begins from the baked state.

        Raises InvalidStateError if that image is missing.
        """
        return await asyncio.to_thread(self._for_start, tree, baked)

    async def of_state(self, tree: str) -> str:
        """Return the image like `for_start`, or "" if it begins from the baked state."""
        first, *_ = await asyncio.to_thread(self._memories.leans_on, tree)
        return first if first.startswith(PREFIX) else ""

    @asynccontextmanager
    async def saving(self, tree: str, save: Save) -> AsyncGenerator[None]:
        """Stop the machine of this tree while the block runs. Copies of the tree use the saved image."""
        base, *_ = await asyncio.to_thread(self._memories.leans_on, tree)
        image = self._memories.image(PREFIX + os.urandom(8).hex())
        try:
            await in_thread(image.begin, base)
            async with AsyncExitStack() as stands:
                fd = image.open()
                try:
                    await stands.enter_async_context(save(image.name, fd))
                finally:
                    os.close(fd)
                await in_thread(self._seal, image, tree, base)
                yield
        finally:
            await in_thread(self._end, image, tree, base)

    def _for_start(self, tree: str, baked: str) -> str | None:
        leans_on = self._memories.leans_on(tree)
        image = leans_on[-1] if leans_on and leans_on[-1].startswith(PREFIX) else None
        if image is not None and not self._memories.is_there(image):
            raise InvalidStateError(f"the memory of the machine that {tree} is a copy of is gone ({image})")
        self._memories.lean(tree, image or baked)
        return image

    def _seal(self, image: Image, tree: str, base: str) -> None:
        image.seal()
        self._memories.lean(tree, base, image.name)

    def _end(self, image: Image, tree: str, base: str) -> None:
        image.let_go()
        with suppress(NotFoundError):  # the sandbox has ended meanwhile, and its tree with it
            self._memories.lean(tree, base)
        with logged("drop the memory image", image.name):  # a sweep finds it
            self._memories.drop(image.name)
