"""Ids and names of what lives and rests, read beside the door: for completion, which has no time for a service.

It shows what the state directory's owner may read anyway, changes nothing, and says nothing where it cannot.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from paddock.supervisor.layout import DATABASE

_SANDBOXES = "SELECT id, name FROM sandboxes WHERE owner = ? AND state IN ('creating', 'running', 'paused') ORDER BY id"
_TASKS = "SELECT name FROM workspaces WHERE owner = ? ORDER BY name"


def names(state_dir: Path) -> tuple[str, ...]:
    """Names first; those of workspaces too, over which nothing may live at the moment. Of sandboxes that ended without
    anybody noticing too: who asks for one of these is told."""
    address = f"file:{quote(str(state_dir / DATABASE))}?mode=ro"
    try:
        db = sqlite3.connect(address, uri=True, timeout=0.2)
        try:
            owner = (f"local:{os.getuid()}",)
            found = db.execute(_SANDBOXES, owner).fetchall()
            tasks = db.execute(_TASKS, owner).fetchall()
        finally:
            db.close()
    except sqlite3.Error:
        return ()
    named = dict.fromkeys((*(name for _, name in found if name), *(name for (name,) in tasks)))
    return (*named, *(id for id, _ in found))
