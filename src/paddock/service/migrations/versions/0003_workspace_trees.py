"""What sandboxes and snapshots have at /workspace; which sandbox of an id it is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("sandboxes", sa.Column("workspace", sa.LargeBinary))
    op.add_column("sandboxes", sa.Column("incarnation", sa.Integer, nullable=False, server_default=sa.text("0")))
    op.add_column("snapshots", sa.Column("workspace", sa.LargeBinary))


def downgrade() -> None:
    raise NotImplementedError("a database is not taken back: restore the file")
