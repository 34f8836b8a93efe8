"""Run by Alembic: applies the steps on the connection, and in the transaction, that `HistoryDatabase.migrate` has begun."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
