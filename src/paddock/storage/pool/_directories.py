"""Trees as plain directories.

As the upper layer of an overlay, an empty one is quick, and a snapshot costs as much as the written files. As a whole
copy it works on every file system, and costs as much as the template.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from paddock.linux.descriptors import closing
from paddock.model import Check, replace
from paddock.storage.pool._copying import copy_layers
from paddock.storage.pool.base import Pool
from paddock.storage.pool.probe import is_refused_overlay
from paddock.storage.pool.probe import overlay as probe_overlay
from paddock.storage.pool.trees import copy_root, make_frame


class OverlayPool(Pool):
    """No limit on disk space: a directory has none, and project quotas are not everywhere."""

    driver = "overlay"

    def derive(self, source: str, name: str, *, limit_bytes: int | None = None) -> tuple[str, ...]:
        with closing(self.open(source)) as origin:
            self._make(name, lambda tree: self.worker.do(_begin_over, (origin, tree), self._base))
        return (source,)


class CopyPool(Pool):
    """A pool like the overlay's, but a new tree begins with a copy of its layers."""

    driver = "copy"
    overlay = False

    def create(
        self, name: str, *, layers: tuple[str, ...] = (), limit_bytes: int | None = None, mounts: int = 0
    ) -> None:
        def fill(tree: int) -> None:
            self.worker.do(make_frame, (tree,), self._base, mounts)
            for origin in origins:
                self.worker.do(copy_layers, (origin, tree), self._base is not None)

        with ExitStack() as stack:
            origins = [stack.enter_context(closing(self.open(layer))) for layer in reversed(layers)]
            self._make(name, fill)

    def checks(self) -> tuple[Check, ...]:
        pool, *more = super().checks()
        if is_refused_overlay(self.config) and probe_overlay(Path(self._path).parent) is None:
            problem = (
                f"{pool.detail}. An overlay works by now, but trees do not change drivers: a new state directory has it"
            )
            pool = replace(pool, detail=problem, fix="PADDOCK_STATE_DIR=DIRECTORY paddock doctor")
        return pool, *more


def _begin_over(origin: int, tree: int, base: int | None) -> None:
    """Make the new tree an empty layer over `origin`."""
    make_frame(tree, base)
    copy_root(origin, tree, keep_owner=base is not None)
