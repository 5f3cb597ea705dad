"""Trees as plain directories.

As the upper layer of an overlay, an empty one is quick, and a snapshot costs as much as the written files. As a whole
copy it works on every file system, and costs as much as the template.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from paddock.linux.descriptors import closing
from paddock.model import Check, replace
from paddock.storage.pool._copying import Copier
from paddock.storage.pool.base import Pool
from paddock.storage.pool.probe import is_refused_overlay
from paddock.storage.pool.probe import overlay as probe_overlay
from paddock.storage.pool.trees import DIRECTORY, copy_notes, copy_root, layers_in, make_frame


class OverlayPool(Pool):
    """No limit on disk space: a directory has none, and project quotas are not everywhere."""

    driver = "overlay"
    overlay = True

    def create(
        self, name: str, *, layers: tuple[str, ...] = (), limit_bytes: int | None = None, mounts: int = 0
    ) -> None:
        self._make(name, lambda tree: self.worker.do(make_frame, (tree,), self._base, mounts))

    def snapshot(
        self, source: str, name: str, *, limit_bytes: int | None = None, at_rest: bool = False, ours: bool = False
    ) -> None:
        base = None if ours else self._base
        with closing(self.open(source)) as origin:
            self._make(name, lambda tree: self.worker.do(_copy_tree, (origin, tree), base), doing="copy")

    def derive(self, source: str, name: str, *, limit_bytes: int | None = None) -> tuple[str, ...]:
        with closing(self.open(source)) as origin:
            self._make(name, lambda tree: self.worker.do(_begin_over, (origin, tree), self._base))
        return (source,)

    def settle(self) -> None:
        """Do nothing: these trees have no quotas."""


class CopyPool(OverlayPool):
    """A pool like the overlay's, but a new tree begins with a copy of its layers."""

    driver = "copy"
    overlay = False

    def create(
        self, name: str, *, layers: tuple[str, ...] = (), limit_bytes: int | None = None, mounts: int = 0
    ) -> None:
        def fill(tree: int) -> None:
            self.worker.do(make_frame, (tree,), self._base, mounts)
            for origin in origins:
                self.worker.do(_copy_layers, (origin, tree), self._base is not None)

        with ExitStack() as stack:
            origins = [stack.enter_context(closing(self.open(layer))) for layer in reversed(layers)]
            self._make(name, fill)

    def checks(self) -> tuple[Check, ...]:
        pool, *more = super().checks()
        if is_refused_overlay(self._config) and probe_overlay(Path(self._path).parent) is None:
            said = (
                f"{pool.detail}. An overlay works by now, but trees do not change drivers: a new state directory has it"
            )
            pool = replace(pool, detail=said, fix="PADDOCK_STATE_DIR=DIRECTORY paddock doctor")
        return pool, *more

    def derive(self, source: str, name: str, *, limit_bytes: int | None = None) -> tuple[str, ...]:
        self.snapshot(source, name, limit_bytes=limit_bytes)
        return ()


def _copy_tree(origin: int, tree: int, base: int | None) -> None:
    """Fill the new tree with the content of `origin`. Without a `base` all of it is ours."""
    make_frame(tree, base, len(layers_in(origin)) - 1)
    _copy_layers(origin, tree, base is not None)
    copy_notes(origin, tree)


def _copy_layers(origin: int, tree: int, keep_owners: bool) -> None:
    for part in layers_in(origin):
        with (
            closing(os.open(part, DIRECTORY, dir_fd=origin)) as source,
            closing(os.open(part, DIRECTORY, dir_fd=tree)) as target,
        ):
            Copier(keep_owners=keep_owners).copy(source, target)


def _begin_over(origin: int, tree: int, base: int | None) -> None:
    """Make the new tree an empty layer over `origin`."""
    make_frame(tree, base)
    copy_root(origin, tree, keep_owner=base is not None)
