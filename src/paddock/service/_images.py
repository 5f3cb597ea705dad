"""Images: pull, list, remove; and what of them nobody needs any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from paddock.backends._threads import in_its_own_thread
from paddock.errors import NotConfigured, NotFound, PaddockError
from paddock.model import Check, GarbageItem, Image, ListImages, PullImage, RemoveImage
from paddock.storage._base import Pool

from ._garbage import Candidate
from ._gate import Entry
from ._needs import Needs
from ._providers import Images

_log = logging.getLogger("paddock")


class ImageRoom:
    def __init__(self, images: Callable[[], Images] | None, needs: Needs) -> None:
        self._source, self._needs = images, needs

    async def perform(
        self, action: PullImage | ListImages | RemoveImage, entry: Entry
    ) -> Image | tuple[Image, ...] | None:
        images = self._images()
        if isinstance(action, ListImages):
            return await asyncio.to_thread(images.list)
        if isinstance(action, RemoveImage):
            for tree in await asyncio.to_thread(images.remove, action.image):
                if tree not in self._needs.by_tree():
                    await asyncio.to_thread(images.discard, tree)
            return None
        fetch = images.pull if action.refresh else images.get
        image = (await in_its_own_thread(fetch, action.reference, _log.info)).image
        entry.done({"reference": image.reference, "digest": image.digest})
        return image

    def checks(self, pool: Callable[[], Pool]) -> tuple[Check, ...]:
        """A line for `doctor`."""
        try:
            kept = pool().worker.base is not None
            count = 0 if self._source is None else len(self._source().list())
        except PaddockError:  # the pool's own line says why
            return ()
        told = f"{count} here" if count else "none here yet"
        if kept:
            return (Check(area="storage", name="images", status="ok", detail=f"{told}; users are the image's"),)
        detail = f"{told}; all files of one belong to one user, and nobody is root: sandboxes have one id here"
        fix = "PADDOCK_SUBORDINATE_IDS=1 PADDOCK_STATE_DIR=DIRECTORY paddock doctor"
        return (Check(area="storage", name="images", status="weak", detail=detail, fix=fix),)

    def _images(self) -> Images:
        if self._source is None:
            raise NotConfigured("this service has no images")
        return self._source()


class UnusedImages:
    """Trees of images that are here no more; and where room is wanted, those of images that nothing lies over."""

    def __init__(self, pool: Callable[[], Pool], images: Callable[[], Images] | None, needs: Needs) -> None:
        self._pool, self._images, self._needs = pool, images, needs

    async def candidates(self) -> Sequence[Candidate]:
        pool = self._pool()
        names = [name for name in await asyncio.to_thread(pool.names) if name.startswith(("tp_oci_", "tb_oci_"))]
        if self._images is None or not names:
            return ()
        needed = self._needs.by_tree()
        had = await asyncio.to_thread(self._images().trees)
        found: list[Candidate] = []
        for name in names:
            why = f"it is of {had[name]}, which can be had again" if name in had else "no image has it any more"
            kept = f"{needed[name][0].by} needs it: {needed[name][0].why}" if name in needed else None
            size = await self._size(pool, name)
            item = GarbageItem(what=name, kind="image", why=why, bytes=size, kept_because=kept)
            found.append(Candidate(item=item, only_when_full=name in had))
        # An image before its layers, which it shares with others.
        return sorted(found, key=lambda each: each.item.what.startswith("tp_oci_layer_"))

    async def take(self, item: GarbageItem) -> str | None:
        assert self._images is not None
        users = self._needs.by_tree().get(item.what)
        if users:  # who has taken it into use since it was looked at may have ended, and his sandbox lives on
            return f"{users[0].by} needs it: {users[0].why}"
        if await asyncio.to_thread(self._images().discard, item.what):
            return None
        return "a program that runs uses it"

    async def _size(self, pool: Pool, name: str) -> int | None:
        try:
            return await asyncio.to_thread(pool.measure, name)
        except NotFound:
            return None
