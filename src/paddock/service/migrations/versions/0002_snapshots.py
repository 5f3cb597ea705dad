"""Snapshots; where a sandbox comes from, and what it is being taken back to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("sandboxes", sa.Column("origin", sa.String))
    op.add_column("sandboxes", sa.Column("restoring", sa.String))
    op.drop_index("one_living_name", "sandboxes")
    op.create_index(
        "one_living_name",
        "sandboxes",
        ["owner", "name"],
        unique=True,
        sqlite_where=sa.text("name IS NOT NULL AND state IN ('creating', 'restoring', 'running', 'paused')"),
    )
    op.create_table(
        "snapshots",
        sa.Column("id", sa.String, primary_key=True, nullable=False),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("name", sa.String),
        sa.Column("source", sa.String, nullable=False),
        sa.Column("template", sa.LargeBinary, nullable=False),
        sa.Column("spec", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("holder", sa.String),
    )
    op.create_index(
        "one_snapshot_name", "snapshots", ["owner", "name"], unique=True, sqlite_where=sa.text("name IS NOT NULL")
    )
    op.create_index("snapshots_by_source", "snapshots", ["owner", "source"])


def downgrade() -> None:
    raise NotImplementedError("a database is not taken back: restore the file")
