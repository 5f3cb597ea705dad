"""Images: pull, list, remove; and what of them nobody needs any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from paddock.backends._threads import in_its_own_thread
from paddock.errors import NotConfigured, PaddockError
from paddock.model import Check, GarbageItem, Image, ListImages, PullImage, RemoveImage

from ._context import Component
from ._garbage import Candidate, measured
from ._gate import Entry
from ._handlers import handles
from ._providers import Images

_log = logging.getLogger("paddock")


class ImageRoom(Component):
    """Collects trees of images that are here no more; and where room is wanted, those that nothing lies over."""

    @handles(ListImages)
    async def list(self, action: ListImages, entry: Entry) -> tuple[Image, ...]:
        return await asyncio.to_thread(self._source().list)

    @handles(RemoveImage)
    async def remove(self, action: RemoveImage, entry: Entry) -> None:
        images = self._source()
        for tree in await asyncio.to_thread(images.remove, action.image):
            if tree not in self._needs.by_tree():
                await asyncio.to_thread(images.discard, tree)

    @handles(PullImage)
    async def pull(self, action: PullImage, entry: Entry) -> Image:
        images = self._source()
        fetch = images.pull if action.refresh else images.get
        image = (await in_its_own_thread(fetch, action.reference, _log.info)).image
        entry.done({"reference": image.reference, "digest": image.digest})
        return image

    def checks(self) -> tuple[Check, ...]:
        """A line for `doctor`."""
        try:
            kept = self._pool().worker.base is not None
            count = 0 if self._images is None else len(self._images().list())
        except PaddockError:  # the pool's own line says why
            return ()
        told = f"{count} here" if count else "none here yet"
        if kept:
            return (Check(area="storage", name="images", status="ok", detail=f"{told}; users are the image's"),)
        detail = f"{told}; all files of one belong to one user, and nobody is root: sandboxes have one id here"
        fix = "PADDOCK_SUBORDINATE_IDS=1 PADDOCK_STATE_DIR=DIRECTORY paddock doctor"
        return (Check(area="storage", name="images", status="weak", detail=detail, fix=fix),)

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
            kept = needed[name][0].told if name in needed else None
            size = await measured(pool, name)
            item = GarbageItem(what=name, kind="image", why=why, bytes=size, kept_because=kept)
            found.append(Candidate(item=item, only_when_full=name in had))
        # An image before its layers, which it shares with others.
        return sorted(found, key=lambda each: each.item.what.startswith("tp_oci_layer_"))

    async def take(self, item: GarbageItem) -> str | None:
        assert self._images is not None
        users = self._needs.by_tree().get(item.what)
        if users:  # who has taken it into use since it was looked at may have ended, and his sandbox lives on
            return users[0].told
        if await asyncio.to_thread(self._images().discard, item.what):
            return None
        return "a program that runs uses it"

    def _source(self) -> Images:
        if self._images is None:
            raise NotConfigured("this service has no images")
        return self._images()
