"""Sandboxes, idempotency keys, leases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "sandboxes",
        sa.Column("id", sa.String, primary_key=True, nullable=False),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("name", sa.String),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("level", sa.String, nullable=False),
        sa.Column("backend", sa.String, nullable=False),
        sa.Column("template", sa.String, nullable=False),
        sa.Column("spec", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
        sa.Column("ended_at", sa.Float),
        sa.Column("limit_name", sa.String),
        sa.Column("reason", sa.String),
        sa.Column("deadline", sa.Float, nullable=False),
        sa.Column("boot_id", sa.String, nullable=False),
        sa.Column("holder", sa.String, nullable=False),
    )
    op.create_index(
        "one_living_name",
        "sandboxes",
        ["owner", "name"],
        unique=True,
        sqlite_where=sa.text("name IS NOT NULL AND state IN ('creating', 'running', 'paused')"),
    )
    op.create_index("sandboxes_by_state", "sandboxes", ["state"])
    op.create_index("sandboxes_by_name", "sandboxes", ["owner", "name"])
    op.create_table(
        "idempotency_keys",
        sa.Column("owner", sa.String, primary_key=True, nullable=False),
        sa.Column("key", sa.String, primary_key=True, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("sandbox", sa.String, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
    )
    op.create_index("idempotency_keys_by_sandbox", "idempotency_keys", ["sandbox"])
    op.create_table(
        "leases",
        sa.Column("name", sa.String, primary_key=True, nullable=False),
        sa.Column("holder", sa.String, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("a database is not taken back: restore the file")
