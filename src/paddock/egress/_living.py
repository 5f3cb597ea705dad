"""Which sandboxes live, by the records of whoever holds them: the keeper's, and those of an engine's containers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from paddock.keeper import layout


class Living:
    def __init__(self, state: Path) -> None:
        self._run, self._containers = self.places = state / layout.RUN, state / layout.CONTAINERS

    def record(self, id: str) -> dict[str, Any]:
        """`incarnation`, `pid` and `start` of one, at least. OSError, ValueError: there is none."""
        try:
            return json.loads((self._containers / id / layout.CONTAINER_RECORD).read_bytes())
        except FileNotFoundError:
            return json.loads((self._run / id / "state.json").read_bytes())

    def has(self, id: str, incarnation: int) -> bool:
        """The record of a jail goes when it does; that of a container when a service has seen its end."""
        try:
            record = self.record(id)
            return record["incarnation"] == incarnation and _is_there(record["pid"])
        except (OSError, ValueError, KeyError):
            return False


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
