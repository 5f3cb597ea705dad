"""What Alembic runs: on the connection that `upgrade` hands over, inside its transaction."""

from __future__ import annotations

from alembic import context

from paddock.service._tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=False,  # the transaction is the caller's
)
context.run_migrations()
