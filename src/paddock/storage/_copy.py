"""Trees as whole copies: works on every file system, and costs what the template holds."""

from __future__ import annotations

import os
from contextlib import ExitStack

from paddock.storage._overlay import OverlayPool
from paddock.storage._porter import by_porter


class CopyPool(OverlayPool):
    """As overlay's, but a tree begins with all that its layers hold."""

    driver = "copy"
    overlay = False

    @by_porter
    def create(
        self, name: str, *, layers: tuple[str, ...] = (), limit_bytes: int | None = None, mounts: int = 0
    ) -> None:
        with ExitStack() as stack:
            origins: list[int] = []
            for layer in reversed(layers):
                origins.append(self.open(layer))
                stack.callback(os.close, origins[-1])
            self._make(name, lambda tree: self._fill(tree, tuple(origins), mounts, base=self._base))

    @by_porter
    def derive(self, source: str, name: str, *, limit_bytes: int | None = None) -> tuple[str, ...]:
        self.snapshot(source, name, limit_bytes=limit_bytes)
        return ()
