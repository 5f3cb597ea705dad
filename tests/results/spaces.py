"""Workspaces for the tests of their results."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from paddock import Sandbox


class Opener(Protocol):
    def __call__(self, remote: Path | None, task: str | None = None) -> Sandbox: ...
