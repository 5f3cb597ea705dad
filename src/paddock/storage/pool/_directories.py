"""Trees as plain directories.

As the upper layer of an overlay an empty one is quick, and a snapshot costs what was written. As a whole copy it works
on every file system, and costs what the template holds.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from paddock.linux.descriptors import closing
from paddock.model import Check, replace
from paddock.storage.diff.differences import copy_basis
from paddock.storage.pool._copying import Copier
from paddock.storage.pool.base import Pool
from paddock.storage.pool.probe import is_refused_overlay
from paddock.storage.pool.probe import overlay as probe_overlay
from paddock.storage.pool.trees import DIRECTORY, copy_root, layers_in, make_frame
from paddock.storage.pool.worker import by_worker


class OverlayPool(Pool):
    """No ceiling on disk space: a directory has none, and project quotas are not everywhere."""

    driver = "overlay"
    overlay = True

    @by_worker
    def create(
        self, name: str, *, layers: tuple[str, ...] = (), limit_bytes: int | None = None, mounts: int = 0
    ) -> None:
        self._make(name, lambda tree: make_frame(tree, self._base, mounts))

    @by_worker
    def snapshot(
        self, source: str, name: str, *, limit_bytes: int | None = None, at_rest: bool = False, ours: bool = False
    ) -> None:
        with closing(self.open(source)) as origin:
            mounts = len(layers_in(origin)) - 1

            def fill(tree: int) -> None:
                self._fill(tree, (origin,), mounts, base=None if ours else self._base)
                copy_basis(origin, tree)

            self._make(name, fill, doing="copy")

    @by_worker
    def derive(self, source: str, name: str, *, limit_bytes: int | None = None) -> tuple[str, ...]:
        def fill(tree: int) -> None:
            make_frame(tree, self._base)
            copy_root(origin, tree, keep_owner=self._base is not None)

        with closing(self.open(source)) as origin:
            self._make(name, fill)
        return (source,)

    def settle(self) -> None:
        """Do nothing: these trees have no quotas."""

    def _fill(self, tree: int, origins: tuple[int, ...], mounts: int = 0, *, base: int | None) -> None:
        """Makes `tree` with the content of `origins`, lowest first; without a `base` all of it is ours."""
        make_frame(tree, base, mounts)
        for origin in origins:
            for part in layers_in(origin):
                self._copy(origin, tree, part, keep_owners=base is not None)

    def _copy(self, origin: int, tree: int, part: str, *, keep_owners: bool) -> None:
        with (
            closing(os.open(part, DIRECTORY, dir_fd=origin)) as source,
            closing(os.open(part, DIRECTORY, dir_fd=tree)) as target,
        ):
            Copier(keep_owners=keep_owners).copy(source, target)


class CopyPool(OverlayPool):
    """As overlay's, but a tree begins with all that its layers hold."""

    driver = "copy"
    overlay = False

    @by_worker
    def create(
        self, name: str, *, layers: tuple[str, ...] = (), limit_bytes: int | None = None, mounts: int = 0
    ) -> None:
        with ExitStack() as stack:
            origins: list[int] = []
            for layer in reversed(layers):
                origins.append(self.open(layer))
                stack.callback(os.close, origins[-1])
            self._make(name, lambda tree: self._fill(tree, tuple(origins), mounts, base=self._base))

    def checks(self) -> tuple[Check, ...]:
        pool, *more = super().checks()
        if is_refused_overlay(self._config) and probe_overlay(Path(self._path).parent) is None:
            said = (
                f"{pool.detail}. An overlay works by now, but trees do not change drivers: a new state directory has it"
            )
            pool = replace(pool, detail=said, fix="PADDOCK_STATE_DIR=DIRECTORY paddock doctor")
        return pool, *more

    @by_worker
    def derive(self, source: str, name: str, *, limit_bytes: int | None = None) -> tuple[str, ...]:
        self.snapshot(source, name, limit_bytes=limit_bytes)
        return ()
