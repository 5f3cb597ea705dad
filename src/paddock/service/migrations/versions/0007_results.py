"""What has left workspaces."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "results",
        sa.Column("owner", sa.String, primary_key=True, nullable=False),
        sa.Column("of_id", sa.String, primary_key=True, nullable=False),
        sa.Column("kind", sa.String, primary_key=True, nullable=False),
        sa.Column("name", sa.String, primary_key=True, nullable=False),
        sa.Column("of_name", sa.String, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("path", sa.String),
        sa.Column("bytes", sa.Integer),
        sa.Column("is_tree", sa.Integer),
        sa.Column("created_at", sa.Float, nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("a database is not taken back: restore the file")
