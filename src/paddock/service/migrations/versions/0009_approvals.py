"""Approvals: what waits for a person's yes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "approvals",
        sa.Column("id", sa.String, primary_key=True, nullable=False),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("sandbox", sa.String, nullable=False),
        sa.Column("incarnation", sa.Integer, nullable=False),
        sa.Column("revision", sa.String, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("summary", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
        sa.Column("deadline", sa.Float, nullable=False),
        sa.Column("boot_id", sa.String, nullable=False),
        sa.Column("decided_at", sa.Float),
        sa.Column("decided_by", sa.String),
        sa.Column("reason", sa.String),
        sa.Column("used_at", sa.Float),
    )
    op.create_index("approvals_by_sandbox", "approvals", ["owner", "sandbox", "digest"])


def downgrade() -> None:
    raise NotImplementedError("a database is not taken back: restore the file")
