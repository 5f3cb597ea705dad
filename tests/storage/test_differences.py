"""What differs between a layer, which a sandbox wrote, and the directory below it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paddock.errors import InvalidStateError
from paddock.linux.descriptors import closing
from paddock.storage.diff.differences import LayerDiff
from paddock.storage.pool.hostile import HostileTree


@pytest.mark.parametrize(("name", "count"), [("d", 300), ("d" * 255, 20)], ids=["deep", "long"])
def test_a_directory_that_no_path_reaches_is_named_and_hides_no_other(tmp_path: Path, name: str, count: int) -> None:
    for made in ("layer", "host"):
        (tmp_path / made).mkdir()
    (tmp_path / "layer" / "file").touch()
    at = os.open(tmp_path / "layer", os.O_RDONLY)
    for _ in range(count):
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    with closing(os.open(tmp_path / "layer", os.O_RDONLY)) as layer, closing(os.open(tmp_path / "host", 0)) as host:
        trees = HostileTree(layer, own=True), HostileTree(host)
        with pytest.raises(InvalidStateError, match="lies more than") as caught:
            LayerDiff(*trees).differences()
        assert len(str(caught.value)) < 300
        assert [one.path for one in LayerDiff(*trees, [b"file"]).differences()] == [b"file"]
