"""Run by alembic: migrates over the connection, and within the transaction, of whoever called it."""

from __future__ import annotations

from alembic import context

from gpuyard.ledger.store.schema import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
