"""Which sandbox has which placeholders."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "sandbox_secrets",
        sa.Column("sandbox", sa.String, primary_key=True, nullable=False),
        sa.Column("name", sa.String, primary_key=True, nullable=False),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("placeholder", sa.String, nullable=False),
        sa.Column("rule", sa.LargeBinary, nullable=False),
        sa.Column("stored", sa.String),
        sa.Column("created_at", sa.Float, nullable=False),
    )
    op.create_index("sandbox_secrets_by_stored", "sandbox_secrets", ["owner", "stored"])


def downgrade() -> None:
    raise NotImplementedError("a database is not taken back: restore the file")
