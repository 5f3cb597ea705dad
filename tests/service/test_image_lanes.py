"""Who gets an image and who deletes one, at once: nothing goes that a pull or a create under way is about to need."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest
from service_world import ME, FolderPool, Rig, until

from paddock.daemon.main.service import Service
from paddock.model import (
    Action,
    CollectGarbage,
    CreateSandbox,
    Image,
    OpenWorkspace,
    PullImage,
    RemoveImage,
    SandboxSpec,
    Template,
)
from tests.stand_ins import HOST, OneTemplate

OLD, NEW, OTHER = "oci:/old", "oci:/new", "oci:/other"
LAYER = "tp_oci_layer_1"


class Record(msgspec.Struct, frozen=True):
    image: Image
    template: Template


class OneLayer(OneTemplate):
    """All images are of one layer. Who fetches one finds the layer there or makes it, then waits for `go`, and then
    writes the record."""

    def __init__(self, pool: FolderPool) -> None:
        self._pool, self.fetched, self.here, self.go = pool, list[str](), dict[str, Record](), threading.Event()

    def record(self, reference: str, progress: Callable[[str], None] | None = None) -> Record:
        if reference not in self.here:
            if LAYER not in self._pool.names():
                self._pool.create(LAYER)
            self.fetched.append(reference)
            assert self.go.wait(60)
            image = Image(reference=reference, digest="d", user="root", workdir="/")
            self.here[reference] = Record(image, msgspec.structs.replace(HOST, layers=(LAYER,)))
        return self.here[reference]

    def discard(self, tree: str) -> bool:
        self._pool.delete(tree)
        return True


class Source:
    def __init__(self, images: OneLayer) -> None:
        self._images = images
        self.get = self.pull = images.record
        self.discard = images.discard

    def list(self) -> tuple[Image, ...]:
        return tuple(record.image for record in self._images.here.values())

    def remove(self, text: str) -> tuple[str, ...]:
        del self._images.here[text]
        return () if self._images.here else (LAYER,)

    def trees(self) -> dict[str, str]:
        return dict.fromkeys([LAYER], "an image") if self._images.here else {}

    def is_version(self, tree: str) -> bool:
        return tree == LAYER


@asynccontextmanager
async def with_an_old_image(rig: Rig) -> AsyncGenerator[tuple[Service, OneLayer]]:
    images = OneLayer(rig.pool)
    async with rig.service(templates=images, images=lambda: Source(images)) as service:
        images.go.set()
        await service.perform(PullImage(reference=OLD), ME)
        images.go.clear()
        try:
            yield service, images
        finally:
            images.go.set()


def begun(service: Service, action: Action[object]) -> asyncio.Future[object]:
    return asyncio.ensure_future(service.perform(action, ME))


def waiting(service: Service) -> int:
    return sum(len(lane._queue) for lane in service.snapshots._lanes._lanes.values())


async def is_waiting(service: Service, task: asyncio.Future[object], number: int = 1) -> None:
    await until(lambda: task.done() or waiting(service) == number)
    assert not task.done(), "it did not wait"


@pytest.mark.parametrize("leaves", [False, True], ids=["", "whose caller leaves"])
async def test_a_removal_waits_for_a_pull_under_way_and_its_layers_stay(rig: Rig, leaves: bool) -> None:
    async with with_an_old_image(rig) as (service, images):
        pull = begun(service, PullImage(reference=NEW))
        await until(lambda: NEW in images.fetched)
        if leaves:
            pull.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pull
        removal = begun(service, RemoveImage(image=OLD))
        await is_waiting(service, removal)
        images.go.set()
        await removal
        assert set(images.here) == {NEW}
        assert LAYER in rig.pool.names()
        assert leaves or await pull


async def test_a_collection_beside_a_pull_goes_on_and_takes_no_image(rig: Rig) -> None:
    async with with_an_old_image(rig) as (service, images):
        await service.perform(RemoveImage(image=OLD), ME)
        pull = begun(service, PullImage(reference=NEW))
        await until(lambda: NEW in images.fetched)
        (item,) = (await service.perform(CollectGarbage(), ME)).items
        assert (item.what, item.kept_because) == (LAYER, "an image is being pulled, used or removed")
        pull.cancel()
        images.go.set()
        await until(lambda: images.here)
        await service.perform(RemoveImage(image=NEW), ME)
        assert LAYER not in rig.pool.names()


async def test_who_get_one_reference_at_once_fetch_it_once_and_who_leaves_leaves_the_queue(rig: Rig) -> None:
    async with with_an_old_image(rig) as (service, images):
        pull, create = PullImage(reference=NEW), CreateSandbox(spec=SandboxSpec(template=NEW))
        gets = [begun(service, pull)]
        await until(lambda: NEW in images.fetched)
        gets += [begun(service, pull), begun(service, create)]
        leaver = begun(service, pull)
        await is_waiting(service, leaver, 3)
        leaver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaver
        assert waiting(service) == 2
        images.go.set()
        await asyncio.gather(*gets)
        assert images.fetched == [OLD, NEW]
        assert len(service.snapshots._lanes._lanes) == 0


async def test_pulls_of_two_references_run_side_by_side(rig: Rig) -> None:
    async with with_an_old_image(rig) as (service, images):
        pulls = [begun(service, PullImage(reference=reference)) for reference in (NEW, OTHER)]
        await until(lambda: {NEW, OTHER} <= set(images.fetched))
        images.go.set()
        await asyncio.gather(*pulls)


async def test_the_image_of_a_create_stays_until_the_row_needs_it(rig: Rig) -> None:
    async with with_an_old_image(rig) as (service, images):
        workspace = await service.perform(OpenWorkspace(name="task"), ME)
        async with service.snapshots._lanes.exclusive(workspace.id):
            create = begun(service, CreateSandbox(spec=SandboxSpec(template=OLD, workspace="task")))
            await is_waiting(service, create)  # it has the image, and no row
            removal = begun(service, RemoveImage(image=OLD))
            await is_waiting(service, removal, 2)
        await asyncio.gather(create, removal)
        assert not images.here
        assert LAYER in rig.pool.names(), "the sandbox lies over it"


async def test_a_service_that_ends_does_not_wait_for_a_pull(rig: Rig) -> None:
    async with with_an_old_image(rig) as (service, images):
        pull = begun(service, PullImage(reference=NEW))
        await until(lambda: NEW in images.fetched)
        await service.aclose()
        assert pull.cancelled()
        assert not images.go.is_set()
        assert len(service.snapshots._lanes._lanes) == 0
