"""What sandboxes of each level took when they were measured on this machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from paddock.model import Level


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """Medians. `edition` is that of the backend then: those of other programs say nothing of these."""

    edition: str
    create_ms: float
    first_exec_ms: float
    measured_at: float


class LevelFigures:
    """Those of one state directory, read once. What another service measures is taken up by the next."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: Mapping[Level, Figure] | None = None
        self.problem: str | None = None
        """Why what was kept is not used."""

    def of(self, level: Level) -> Figure | None:
        if self._known is None:
            self._known = self._read()
        return self._known.get(level)

    def keep(self, found: Mapping[Level, Figure]) -> None:
        """Beside those of other levels. Whole or not at all."""
        known = {**self._read(), **found}
        data = msgspec.json.format(msgspec.json.encode(known)) + b"\n"
        with tempfile.NamedTemporaryFile(dir=self._file.parent, prefix=self._file.name, delete=False) as draft:
            try:
                draft.write(data)
                draft.flush()
                os.replace(draft.name, self._file)
            except BaseException:
                os.unlink(draft.name)
                raise
        self._known = known

    def _read(self) -> Mapping[Level, Figure]:
        self.problem = None
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[Level, Figure])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            self.problem = f"{self._file} cannot be used: {error}"
            return {}
