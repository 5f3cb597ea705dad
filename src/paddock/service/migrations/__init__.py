"""Brings a database to this version's schema. Imports Alembic: only called when the version differs."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, pool


def upgrade(path: Path, version: int) -> None:
    """In one transaction: a migration that was interrupted has not begun."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    engine = create_engine(f"sqlite:///{path}", poolclass=pool.NullPool)
    try:
        with engine.connect() as connection:
            # The driver would begin a transaction only before the first INSERT, and DDL would run outside of one.
            connection.connection.dbapi_connection.isolation_level = None  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
            connection.exec_driver_sql("BEGIN EXCLUSIVE")
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            connection.exec_driver_sql(f"PRAGMA user_version = {version}")
            connection.exec_driver_sql("COMMIT")
    finally:
        engine.dispose()
