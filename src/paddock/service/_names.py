"""Ids and names of the living, read beside the door: for completion, which has no time for a service.

It shows what the state directory's owner may read anyway, changes nothing, and says nothing where it cannot.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from paddock.keeper.layout import DATABASE

_SQL = "SELECT id, name FROM sandboxes WHERE owner = ? AND state IN ('creating', 'running', 'paused') ORDER BY id"


def names(state_dir: Path) -> tuple[str, ...]:
    """Names first. Of those that ended without anybody noticing too: who asks for one of these is told."""
    address = f"file:{quote(str(state_dir / DATABASE))}?mode=ro"
    try:
        db = sqlite3.connect(address, uri=True, timeout=0.2)
        try:
            found = db.execute(_SQL, (f"local:{os.getuid()}",)).fetchall()
        finally:
            db.close()
    except sqlite3.Error:
        return ()
    return (*(name for _, name in found if name), *(id for id, _ in found))
