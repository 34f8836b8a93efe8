"""The steps from one schema of the history to the next, for Alembic. A step that was released never changes."""
