"""Trees as directories, for the upper layer of an overlay: an empty one is quick, a snapshot costs what was written."""

from __future__ import annotations

import os

from paddock.linux.descriptors import closing
from paddock.storage._basis import copy_basis
from paddock.storage._copying import Copier
from paddock.storage._directories import Directories
from paddock.storage._trees import DIRECTORY, copy_root, layers_in, make_frame
from paddock.storage._worker import by_worker


class OverlayPool(Directories):
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
