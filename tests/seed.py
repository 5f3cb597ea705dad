"""The seed of tests that draw what they do: the commit, so that a change is judged by the same draw on every machine.

`PADDOCK_SEED` repeats a run.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def _seed() -> str:
    found = os.environ.get("PADDOCK_SEED")
    if found is None:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, check=False)
        found = head.stdout.decode().strip() or "no commit"
    return found


SEED = _seed()
