"""A stranger's layer is unpacked in a process of its own: it can end that process, and nothing else."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from paddock.errors import ImageInvalidError, InternalError, ResourceExhaustedError
from paddock.storage import Pool
from paddock.storage.pool.worker import Worker
from paddock.storage.templates.images._images import Images
from paddock.storage.templates.images.limits import ImageLimits
from tests.images.layouts import directory, layer, member, write_layout
from tests.images.test_images import BASE, UPPER, silent

_PATCHED = (
    "import sys,json;o=json.loads(sys.argv[1]);sys.path[:]=o.pop('path');"
    "from tests.images import dying;dying.STEP={step};"
    "from paddock.storage.templates.images import _building;_building._lay=dying.{work};"
    "from paddock.storage.pool._jobs import serve;serve(**o)"
)


@pytest.fixture
def play(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[..., str]]:
    """Take an image in with a worker that does `work` in place of laying a layer; the name of its tree."""

    def play(reference: str, work: str = "lay", step: int = 0) -> str:
        pool.worker.close()
        monkeypatch.setattr("paddock.storage.pool.worker._BOOTSTRAP", _PATCHED.format(work=work, step=step))
        images = Images(pool, tmp_path / "state", limits=ImageLimits(unpacked_bytes=64 << 20, entries=3000))
        return images.get(reference, silent).tree

    yield play
    pool.worker.close()


def test_a_worker_killed_at_any_step_of_a_layer_leaves_nothing(
    pool: Pool, tmp_path: Path, play: Callable[..., str]
) -> None:
    reference = write_layout(tmp_path / "layout", BASE, UPPER)
    killed = 0
    while True:
        try:
            play(reference, "dying", 1 + killed * 6)
        except InternalError as error:
            killed += "killed by signal" in error.message
        else:
            break
        assert all(name.startswith("tp_oci_layer_") for name in pool.names())  # the layers that were whole before
        assert pool.unfinished() == ()
    assert killed > 2
    assert play(reference) in pool.names()


HOSTILE: dict[str, tuple[tuple[tarfile.TarInfo, bytes], ...]] = {
    "unpacks to more than is taken": (member("zeros", bytes(65 << 20)),),
    "more files than are taken": tuple(member(str(number)) for number in range(3001)),
    "more files than are taken of one": tuple(directory("/".join("d" * depth)) for depth in range(1, 2000)),
    "is not a valid file name": (directory("/".join("d" * 3001)),),
}


@pytest.mark.parametrize("harness", ["overlay"], indirect=True)  # the worker refuses: no driver has a part in it
@pytest.mark.parametrize("why", HOSTILE)
def test_a_layer_that_is_too_much_is_refused_and_the_next_image_is_taken_in(
    pool: Pool, tmp_path: Path, play: Callable[..., str], why: str
) -> None:
    data = layer(*HOSTILE[why])
    with pytest.raises(ImageInvalidError, match=why):
        play(write_layout(tmp_path / "hostile", data))
    assert pool.names() == ()
    assert play(write_layout(tmp_path / "layout", BASE)) in pool.names()


@pytest.mark.both
@pytest.mark.parametrize("harness", ["overlay"], indirect=True)
def test_a_layer_that_takes_over_its_worker_ends_within_seconds_and_memory(
    pool: Pool, tmp_path: Path, play: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = write_layout(tmp_path / "layout", BASE)
    with pytest.raises(ResourceExhaustedError, match="MiB of memory"):
        play(reference, "huge")
    assert pool.names() == ()
    monkeypatch.setitem(Worker.confined.__kwdefaults__ or {}, "seconds", 1)
    with pytest.raises(ResourceExhaustedError, match="more than 1 seconds"):
        play(reference, "endless")
    assert pool.names() == ()
