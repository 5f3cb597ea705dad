"""Repositories, what they had, bases, workshops."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "repositories",
        sa.Column("id", sa.String, primary_key=True, nullable=False),
        sa.Column("scope", sa.String, nullable=False),
        sa.Column("url", sa.String, nullable=False),
        sa.Column("head", sa.String),
        sa.Column("observed_at", sa.Float),
        sa.Column("observed_boot", sa.String),
        sa.Column("observed_clock", sa.Float),
        sa.Column("used_at", sa.Float, nullable=False),
    )
    op.create_index("one_repository_per_scope", "repositories", ["scope", "url"], unique=True)
    op.create_table(
        "repository_refs",
        sa.Column("repository", sa.String, primary_key=True, nullable=False),
        sa.Column("name", sa.String, primary_key=True, nullable=False),
        sa.Column("oid", sa.String, nullable=False),
        sa.Column("commit_id", sa.String),
    )
    op.create_index("repository_refs_by_commit", "repository_refs", ["repository", "commit_id"])
    op.create_table(
        "bases",
        sa.Column("id", sa.String, primary_key=True, nullable=False),
        sa.Column("repository", sa.String, nullable=False),
        sa.Column("commit_id", sa.String, nullable=False),
        sa.Column("branch", sa.String, nullable=False),
        sa.Column("holder", sa.String),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("used_at", sa.Float, nullable=False),
    )
    op.create_index("one_base", "bases", ["repository", "commit_id", "branch"], unique=True)
    op.create_table(
        "workshops",
        sa.Column("id", sa.String, primary_key=True, nullable=False),
        sa.Column("holder", sa.String, nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("a database is not taken back: restore the file")
