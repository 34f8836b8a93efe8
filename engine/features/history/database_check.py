"""The check of `engine doctor` for the database of the history."""

from __future__ import annotations

from pathlib import Path

from engine.config import Config


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
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
        return f"{url.database}, made at the first start"
    database = HistoryDatabase(config.history_url, config.data_dir)
    try:
        database.ping()
    finally:
        database.close()
    return f"{database.shown} answers"
