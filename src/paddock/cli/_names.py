"""Ids and names of sandboxes and workspaces, directly from the database: completion has no time for the daemon.

It shows only records that the state directory's owner may read, changes nothing, and returns nothing if it can't read
them.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from paddock.supervisor.layout import DATABASE

_SANDBOXES = "SELECT id, name FROM sandboxes WHERE owner = ? AND ended_at IS NULL ORDER BY id"
_TASKS = "SELECT name FROM workspaces WHERE owner = ? ORDER BY name"


def names(state_dir: Path) -> tuple[str, ...]:
    """Return names and ids, names first, also of workspaces without a living sandbox.

    They may include sandboxes whose end isn't recorded yet. A command on one of these reports it.
    """
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
