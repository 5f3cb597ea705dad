"""Trees as whole copies: works on every file system, and costs what the template holds."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import msgspec

from paddock.model import Check
from paddock.storage._overlay import OverlayPool
from paddock.storage._probe import is_refused_overlay
from paddock.storage._probe import overlay as probe_overlay
from paddock.storage._worker import by_worker


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
            pool = msgspec.structs.replace(pool, detail=said, fix="PADDOCK_STATE_DIR=DIRECTORY paddock doctor")
        return pool, *more

    @by_worker
    def derive(self, source: str, name: str, *, limit_bytes: int | None = None) -> tuple[str, ...]:
        self.snapshot(source, name, limit_bytes=limit_bytes)
        return ()
