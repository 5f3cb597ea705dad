"""The kit as a directory of the machine, where an engine can show it: the pool may be mounted for the keeper alone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from paddock.linux.descriptors import closing
from paddock.storage import _kit
from paddock.storage._recipe import write_manifest
from paddock.storage._trees import DIRECTORY
from paddock.storage._worker import Worker


def kit_directory(directory: Path) -> Path:
    """`directory/kit/<version>`, made if it is not there: whole or not at all. Unsupported."""
    place = directory / "kit" / _kit.recipe().tree
    if place.is_dir():
        return place
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = place.with_suffix(".new")
    shutil.rmtree(scratch, ignore_errors=True)  # a killed builder's
    scratch.mkdir(mode=0o755)
    with closing(os.open(scratch, DIRECTORY)) as root:
        write_manifest(root, Worker(None), _kit.manifest())
    scratch.rename(place)
    return place
