"""The check of `engine doctor` for the database of the history."""

from __future__ import annotations

import os
from pathlib import Path

from engine.config import Config
from engine.errors import ConfigError


def look(config: Config) -> str:
    """What answers at `history_url`, "" where none is set. The engine makes a file that does not exist yet; this makes none.

    Raises:
        ConfigError: the URL cannot be used.
        StorageUnavailable: the database does not answer.
    """
    if not config.history_url:
        return ""
    from engine.features.history.history_database import HistoryDatabase, database_url  # a quarter of a second, when there is a history

    url = database_url(config.history_url, config.data_dir)
    if url.get_backend_name() == "sqlite" and not os.path.exists(file := url.database or ""):
        there = next(parent for parent in Path(file).parents if os.path.exists(parent))
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            raise ConfigError(f"history_url: {file} cannot be made in {there}")
        return f"{file}, made at the first start"
    database = HistoryDatabase(config.history_url, config.data_dir)
    try:
        database.ping()
    finally:
        database.close()
    return f"{database.shown} answers"
