"""The trusted certificates of programs in a virtual machine.

The daemon fills these files beside the sandbox (`access/_trust`).

A jail sees changes at once. This copies changed files into the machine.
"""

from __future__ import annotations

from pathlib import Path

from paddock.backends.guest import Request, orders
from paddock.supervisor import _trust_places, layout


class Trust:
    def __init__(self, state_dir: Path, id: str) -> None:
        self._directory = state_dir / layout.RUN / id
        self._brought: tuple[int, int] | None = None

    def fresh(self) -> list[Request]:
        """Return the updates that the guest lacks, or nothing without network access."""
        try:
            info = (self._directory / layout.TRUST).stat()
        except FileNotFoundError:
            return []
        stamp = (info.st_mtime_ns, info.st_size)
        if info.st_size == 0 or stamp == self._brought:
            return []
        self._brought = stamp
        return [self._file(*kind) for kind in _trust_places.KINDS]

    def _file(self, name: str, place: str, systems: tuple[bytes, ...]) -> Request:
        data = (self._directory / name).read_bytes()
        return orders.trust(f"/{place}", [f"/{path.decode()}" for path in systems], data)
