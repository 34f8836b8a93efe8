"""The database of the history: its schema, inserts, deletions and queries. Every method blocks, and belongs in a thread.

Inserting a row that is there already has no effect, so whatever is inserted again after a crash changes nothing. A row that the database
refuses for its content is left out alone.

The schema is brought up to date by Alembic when an archivist starts.

Transactions that write wait for each other: by an advisory lock of PostgreSQL, by the write lock of SQLite. So of two archivists one makes
the schema, and an erasure finds the rows that the other one stores.

A connection sends PostgreSQL no settings, and no statement outlives its transaction, so it may pass a pooler such as PgBouncer.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.util import CommandError
from sqlalchemy import URL, Connection, Engine, Select, create_engine, delete, event, make_url, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.pool import NullPool, QueuePool

from engine.core.model.routing import split_key
from engine.errors import ConfigError, StorageUnavailable
from engine.features.history.outcome_rows import OutcomeRow
from engine.features.history.tables import erasures, history
from engine.store.outcome_members import first_id

log = logging.getLogger(__name__)

_WRITE_LOCK: Final = 0x656E67696E65  # "engine"

_CONNECT_TIMEOUT_S: Final = 5
_QUERY_TIMEOUT_MS: Final = 10_000
_BUSY_TIMEOUT_S: Final = 10  # SQLite: for another writer
_LOCKED_S: Final = 0.01
_SWEEP_ROWS: Final = 10_000
"""Deleted at once: a statement of some 100 ms."""

_ERASED_MS: Final = 86_400_000
"""Rows of before an erasure that arrive later than this were recorded by nobody who still has them."""

_AHEAD_MS: Final = 500
"""The clock of an edge may be so far ahead of the shard's that erases a user: rows of before carry a later time."""


class HistoryDatabase:
    """See the module's text. Every method raises StorageUnavailable when the database does not answer.

    Args:
        url: `sqlite:///FILE` or `postgresql://...`.
        data_dir: a relative FILE is in it.

    Raises:
        ConfigError: the driver of PostgreSQL is not installed.
    """

    def __init__(self, url: str, data_dir: str) -> None:
        self._url = database_url(url, data_dir)
        self._is_postgresql = self._url.get_backend_name() == "postgresql"
        try:
            self._engine = _postgresql(self._url) if self._is_postgresql else _sqlite(self._url)
        except ModuleNotFoundError as error:
            raise ConfigError("history_url: PostgreSQL needs its driver: pip install 'ray-notification-engine[postgresql]'") from error
        dialect = postgresql if self._is_postgresql else sqlite
        self._insert = dialect.insert(history).on_conflict_do_nothing(index_elements=["id"])
        self._note_erasure = dialect.insert(erasures)
        noted_ms = self._note_erasure.excluded.at_ms
        self._note_erasure = self._note_erasure.on_conflict_do_update(
            index_elements=["user_digest"], set_={"at_ms": noted_ms}, where=erasures.c.at_ms < noted_ms
        )

    @property
    def shown(self) -> str:
        """The URL without its passwords, which may be among its parameters too."""
        return self._url.difference_update_query(("password", "sslpassword")).render_as_string(hide_password=True)

    def close(self) -> None:
        self._engine.dispose()

    def migrate(self) -> None:
        """Create the schema, or bring it up to date. No effect when it is."""
        if not self._is_postgresql and self._url.database:
            try:
                os.makedirs(os.path.dirname(self._url.database), exist_ok=True)
                os.close(os.open(self._url.database, os.O_CREAT | os.O_RDWR, 0o600))  # it is about users
            except OSError as error:
                raise StorageUnavailable(f"the database of the history: {error}") from error
        settings = AlembicConfig()
        settings.set_main_option("script_location", "engine.features.history:migrations")
        with self._transaction() as connection:
            settings.attributes["connection"] = connection
            try:
                command.upgrade(settings, "head")
            except CommandError as error:  # a newer release has made it
                raise StorageUnavailable(f"the database of the history has a schema that this release does not know: {error}") from error

    def store(self, rows: Sequence[OutcomeRow], erased: Iterable[tuple[str, int]] = ()) -> int:
        """Insert rows, and delete those of erased users, in one transaction. Idempotent.

        Args:
            erased: mailbox keys, and the time up to which nothing is kept, ms.

        Returns:
            The number of rows that the database refuses for what they contain.
        """
        try:
            self._store(rows, erased)
        except (DataError, IntegrityError) as error:
            log.warning("rows of the history are stored one by one: %s", error.orig)
            return self._store_each(rows, erased)
        return 0

    def _store(self, rows: Sequence[OutcomeRow], erased: Iterable[tuple[str, int]]) -> None:
        with self._transaction() as connection:
            if rows:
                connection.execute(self._insert, list(rows))
            self._erase(connection, rows, erased)

    def _store_each(self, rows: Sequence[OutcomeRow], erased: Iterable[tuple[str, int]]) -> int:
        refused = 0
        with self._transaction() as connection:
            for row in rows:
                try:
                    with connection.begin_nested():
                        connection.execute(self._insert, [row])
                except (DataError, IntegrityError) as error:
                    log.error("a row of the history is refused: %s", error.orig)
                    refused += 1
            self._erase(connection, rows, erased)
        return refused

    def _erase(self, connection: Connection, rows: Sequence[OutcomeRow], erased: Iterable[tuple[str, int]]) -> None:
        """Delete the rows of users who are erased now, or whose rows arrive late."""
        keys = {f"{row['tenant']}:{row['user_id']}" for row in rows}
        for key, at_ms in erased:
            keys.add(key)
            connection.execute(self._note_erasure, {"user_digest": _digest(*split_key(key)), "at_ms": at_ms})
        known = {bytes(digest): at_ms for digest, at_ms in connection.execute(select(erasures.c.user_digest, erasures.c.at_ms))}
        for key in keys if known else ():
            tenant, user = split_key(key)
            if (erased_ms := known.get(_digest(tenant, user))) is not None:
                of_user = (history.c.tenant == tenant) & (history.c.user_id == user) & (history.c.id < first_id(erased_ms + _AHEAD_MS))
                while _delete_some(connection, select(history.c.id).where(of_user)):
                    pass

    def ping(self) -> None:
        """Ask for nothing."""
        with self._transaction(writes=False) as connection:
            connection.execute(text("SELECT 1"))

    def sweep(self, before_ms: int, now_ms: int) -> int:
        """Delete some of the rows that are older than `before_ms`; returns how many. Repeat it until there are none."""
        with self._transaction() as connection:
            connection.execute(delete(erasures).where(erasures.c.at_ms < now_ms - _ERASED_MS))
            return _delete_some(connection, select(history.c.id).where(history.c.id < first_id(before_ms)).order_by(history.c.id))

    def query(self, wanted: Mapping[str, Any], limit: int) -> list[OutcomeRow]:
        """Rows that meet all conditions, newest first; by column, without those that are null.

        Conditions are `tenant`, `user`, `message`, `since_ms`, `until_ms` and `before` (a row id).
        """
        columns = history.c
        found = select(history).order_by(columns.id.desc()).limit(limit)
        for name, column in (("tenant", columns.tenant), ("user", columns.user_id), ("message", columns.message)):
            if name in wanted:
                found = found.where(column == wanted[name])
        if "since_ms" in wanted:
            found = found.where(columns.id >= first_id(wanted["since_ms"]))
        if "until_ms" in wanted:
            found = found.where(columns.id < first_id(wanted["until_ms"]))
        if "before" in wanted:
            found = found.where(columns.id < wanted["before"])
        with self._transaction(writes=False) as connection:
            rows = connection.execute(found).mappings().all()
        return [{name: value for name, value in row.items() if value is not None} for row in rows]

    @contextlib.contextmanager
    def _transaction(self, *, writes: bool = True) -> Iterator[Connection]:
        try:
            with self._engine.execution_options(writes=writes).begin() as connection:
                yield connection
        except (DataError, IntegrityError):
            raise
        except (SQLAlchemyError, UnicodeError) as error:  # the latter of a host that no resolver takes
            reason = error.orig if isinstance(error, DBAPIError) else error
            raise StorageUnavailable(f"the database of the history: {str(reason).strip().splitlines()[0]}") from error


def database_url(url: str, data_dir: str) -> URL:
    """The URL as SQLAlchemy takes it. Raises ConfigError when it cannot be read."""
    try:
        parsed = make_url(url)
    except (SQLAlchemyError, ValueError) as error:
        raise ConfigError("history_url: this is no URL of a database") from error
    if parsed.get_backend_name() == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    return parsed.set(database=os.path.abspath(os.path.join(data_dir, parsed.database or "history.db")))


def _sqlite(url: URL) -> Engine:
    # A connection for each transaction: opening a file costs nothing, and one whose file was replaced would write to nowhere.
    # It makes no file: `migrate` does, for its owner only.
    file = f"{Path(url.database or '').as_uri()}?mode=rw"
    engine = create_engine(url, poolclass=NullPool, creator=lambda: sqlite3.connect(file, _BUSY_TIMEOUT_S, uri=True))

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver begins no transaction by itself: it would leave the schema out of it
        _write_ahead(connection)  # readers do not wait for the writer
        connection.execute("PRAGMA synchronous = FULL")  # what is committed leaves the stream

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")  # two writers wait for each other at once, not at a conflict

    return engine


def _write_ahead(connection: Any) -> None:
    """Use a write-ahead log. SQLite does not wait while it changes to it: of several who open a new file at once, others try again."""
    end_s = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > end_s:
                raise
            time.sleep(_LOCKED_S)
        else:
            return


def _postgresql(url: URL) -> Engine:
    engine = create_engine(
        url,
        poolclass=QueuePool,
        pool_size=2,
        max_overflow=2,
        pool_pre_ping=True,
        connect_args={
            "connect_timeout": _CONNECT_TIMEOUT_S,
            "prepare_threshold": None,  # a pooler may give the next transaction another connection to the server
            "tcp_user_timeout": _QUERY_TIMEOUT_MS,  # a server that vanished closes nothing
            "keepalives_idle": _CONNECT_TIMEOUT_S,  # neither once it has the query: then nothing is on its way that it does not confirm
            "keepalives_interval": _CONNECT_TIMEOUT_S,
        },
    )

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {_QUERY_TIMEOUT_MS}")
        if connection.get_execution_options().get("writes", False):
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITE_LOCK})")

    return engine


def _delete_some(connection: Connection, ids: Select[tuple[bytes]]) -> int:
    """Delete some of the rows with these ids; returns how many. A statement for all might take longer than it may."""
    return int(connection.execute(delete(history).where(history.c.id.in_(ids.limit(_SWEEP_ROWS).scalar_subquery()))).rowcount)


def _digest(tenant: str, user: str) -> bytes:
    return blake2b(f"{tenant}:{user}".encode(errors="surrogatepass"), digest_size=16).digest()
