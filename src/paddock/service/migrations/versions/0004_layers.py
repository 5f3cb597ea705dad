"""The trees that a sandbox's own lies over, so that none of them goes while it lives."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("sandboxes", sa.Column("layers", sa.String, nullable=False, server_default=""))


def downgrade() -> None:
    raise NotImplementedError("a database is not taken back: restore the file")
