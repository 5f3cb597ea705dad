"""What tests say about databases."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def schema_of(path: Path) -> dict[tuple[str, str], tuple[object, ...]]:
    """Return what defines each table and index, whatever the order of columns and the white space."""
    with closing(sqlite3.connect(path)) as db:
        return {
            (name, kind): tuple(sorted(str(column[1:]) for column in db.execute(f"PRAGMA table_info({name})")))
            if kind == "table"
            else (sql and " ".join(sql.split()),)
            for name, kind, sql in db.execute("SELECT name, type, sql FROM sqlite_master").fetchall()
        }
