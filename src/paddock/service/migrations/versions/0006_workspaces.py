"""Workspaces: durable trees, the sandbox that may write each, and what was kept of those that were evicted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "workspaces",
        sa.Column("id", sa.String, primary_key=True, nullable=False),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("holder", sa.String),
        sa.Column("url", sa.String),
        sa.Column("branch", sa.String),
        sa.Column("oid", sa.String),
        sa.Column("observed_at", sa.Float),
        sa.Column("repository", sa.String),
        sa.Column("base", sa.String),
        sa.Column("layers", sa.String, nullable=False),
        sa.Column("sandbox", sa.String),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("disk_mib", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("used_at", sa.Float, nullable=False),
        sa.Column("pinned_until", sa.Float),
        sa.Column("kept", sa.LargeBinary),
    )
    op.create_index("one_workspace_name", "workspaces", ["owner", "name"], unique=True)
    op.create_index("workspaces_by_sandbox", "workspaces", ["sandbox"])


def downgrade() -> None:
    raise NotImplementedError("a database is not taken back: restore the file")
