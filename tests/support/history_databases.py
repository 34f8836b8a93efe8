"""Databases for tests of the history: those of the kinds that it may be in."""

from __future__ import annotations

from sqlalchemy import create_engine, text

from engine.features.history.history_database import database_url
from tests.support.postgresql_server import PostgresqlServer


def emptied(server: PostgresqlServer) -> str:
    """The URL of the server's database, with nothing in it."""
    engine = create_engine(database_url(server.url, ""))
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()
    return server.url
