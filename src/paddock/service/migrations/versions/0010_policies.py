"""Policies by revision, and which one sandboxes and snapshots have."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "policies",
        sa.Column("revision", sa.String, primary_key=True, nullable=False),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.Column("kept_at", sa.Float, nullable=False),
    )
    op.add_column("sandboxes", sa.Column("policy", sa.String))
    op.add_column("snapshots", sa.Column("policy", sa.String))


def downgrade() -> None:
    raise NotImplementedError("a database is not taken back: restore the file")
