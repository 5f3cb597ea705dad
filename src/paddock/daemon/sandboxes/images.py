"""Pull, list and remove images, and delete what no image or sandbox needs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from paddock.backends.threads import in_its_own_thread
from paddock.daemon.context import Component, Context, Operation, handles
from paddock.daemon.store.candidates import Candidate, discarded, measured
from paddock.daemon.store.references import trees_needed, why_needed
from paddock.daemon.tasks import in_thread
from paddock.errors import PaddockError
from paddock.linux import subordinate_ids
from paddock.model import Check, Image, ListImages, PullImage, RemoveImage

if TYPE_CHECKING:
    from paddock.storage.templates.images import Record

LANE = "images"
_log = logging.getLogger("paddock")


@asynccontextmanager
async def use_image(context: Context, reference: str, *, refresh: bool = False) -> AsyncGenerator[Record]:
    """Get an image in a thread: for one reference, one caller at a time. Nothing of an image is deleted before the
    block ends, nor before the thread ends, which continues after a cancellation. Raises NotConfiguredError."""
    images = await asyncio.to_thread(context.images)  # which may have to be imported
    get = images.pull if refresh else images.get
    async with AsyncExitStack() as holds, AsyncExitStack() as turn:
        await holds.enter_async_context(context.lanes.shared(LANE))
        await turn.enter_async_context(context.lanes.exclusive(f"{LANE} {reference}"))
        work, name = in_its_own_thread(get, reference, _log.info), f"get image {reference}"
        doing = context.tasks.start(work, name=name, awaited=True)
        try:
            await asyncio.wait((doing,))
        except asyncio.CancelledError:
            holds.push_async_exit(turn.pop_all())
            holds.push_async_callback(asyncio.wait, (doing,))
            context.tasks.start(holds.pop_all().aclose(), name=name)
            raise
        await turn.aclose()
        yield doing.result()


class ImageHandlers(Component):
    """Find trees of removed images; and if room is wanted, those without a sandbox over them."""

    @handles(ListImages)
    async def list(self, action: ListImages, op: Operation) -> tuple[Image, ...]:
        return await asyncio.to_thread(self._images().list)

    @handles(RemoveImage)
    async def remove(self, action: RemoveImage, op: Operation) -> None:
        images = self._images()
        async with self._lanes.exclusive(LANE):
            for tree in await in_thread(images.remove, action.image):
                if tree not in trees_needed(self._store):
                    await in_thread(images.discard, tree)

    @handles(PullImage)
    async def pull(self, action: PullImage, op: Operation) -> Image:
        async with use_image(self._context, action.reference, refresh=action.refresh) as record:
            image = record.image
        op.done({"reference": image.reference, "digest": image.digest})
        return image

    def checks(self) -> tuple[Check, ...]:
        """Return a line for `doctor`."""
        try:
            kept = self._pool().worker.base is not None
            count = len(self._images().list())
        except PaddockError:  # the pool's own line says why
            return ()
        number = f"{count} here" if count else "none here yet"
        if kept:
            return (Check(area="storage", name="images", status="ok", detail=f"{number}; users are the image's"),)
        detail = f"{number}; all files of an image belong to one user, without a root: sandboxes have one id here"
        fix = "`subordinate_ids = true` in config.toml of a new state directory"
        if isinstance(subordinate_ids.granted(), str):
            fix = subordinate_ids.remedy()
        return (Check(area="storage", name="images", status="weak", detail=detail, fix=fix),)

    async def candidates(self) -> Sequence[Candidate]:
        pool = self._pool()
        names = [name for name in await asyncio.to_thread(pool.names) if name.startswith(("tp_oci_", "tb_oci_"))]
        if not names:
            return ()
        needed = trees_needed(self._store)
        had = await asyncio.to_thread(self._images().trees)
        found: list[Candidate] = []
        for name in names:
            why = f"it is of {had[name]}, which can be had again" if name in had else "no image has it any more"
            size, kept = await measured(pool, name), why_needed(needed, name)
            found.append(Candidate(name, "image", why, size, self._take, kept, only_when_full=name in had))
        # An image before its layers, which it shares with others.
        return sorted(found, key=lambda each: each.what.startswith("tp_oci_layer_"))

    async def _take(self, name: str) -> str | None:
        if not self._lanes.is_free(LANE):  # a slow registry holds no sweep up, nor those who would queue behind it
            return "an image is being pulled, used or removed"
        async with self._lanes.exclusive(LANE):
            return await discarded(self._images().discard, name, why_needed(trees_needed(self._store), name))
