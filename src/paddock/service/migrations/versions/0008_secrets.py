"""Secrets, sealed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "secrets",
        sa.Column("owner", sa.String, primary_key=True, nullable=False),
        sa.Column("name", sa.String, primary_key=True, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("key", sa.String, nullable=False),
        sa.Column("wrapped", sa.LargeBinary, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("updated_at", sa.Float, nullable=False),
        sa.Column("used_at", sa.Float),
    )


def downgrade() -> None:
    raise NotImplementedError("a database is not taken back: restore the file")
