"""A PostgreSQL outbox: applications insert rows in their own transactions, and this deletes each row when the engine has it.

No position is stored, since sequence numbers commit out of order: a reader that remembers the last number skips the row of a slower
transaction. A row that exists is unread; a row that was accepted is deleted. A rolled-back row was never visible.

States of a row
    free      committed; `read` may take it
    locked    read by one reader, in its open transaction (FOR UPDATE SKIP LOCKED)
    gone      deleted; accepted by the engine
    dead      in the table `<table>_dead`, with the reason

Crash points. The reader or its connection dies while rows are locked: PostgreSQL rolls back, and the rows are free. The engine may have
accepted them: the next reader sends them under the same ids, and they are duplicates. The server dies before the commit: likewise.
Two readers run at once: the locks give each other rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Final, TypeVar

import psycopg
from psycopg import sql

from engine.errors import StorageUnavailable
from engine.features.sources.core import PostgresqlSource, SourceRow
from engine.features.sources.readers import DeadRow, SourceLag

T = TypeVar("T")

_CONNECT_TIMEOUT_S: Final = 5
_STATEMENT_TIMEOUT_MS: Final = 10_000
"""Of one statement: a thousand times what it takes on an indexed batch."""

_ANSWER_S: Final = 2 * _STATEMENT_TIMEOUT_MS / 1000
"""The server ends a statement before."""

_NAME_BYTES_MAX: Final = 63
"""Of a name in PostgreSQL. LISTEN cuts a longer one, and pg_notify refuses it, with the INSERT of the application."""

_DDL: Final = """\
CREATE TABLE {table} (
    seq        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id         uuid NOT NULL DEFAULT gen_random_uuid(),  -- of the message, unless the body has an id
    body       jsonb NOT NULL,                           -- {{"user": ..., "type": ..., "data": ...}}
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE {dead} (
    seq       bigint PRIMARY KEY,
    id        uuid NOT NULL,
    body      jsonb NOT NULL,
    reason    text NOT NULL,
    failed_at timestamptz NOT NULL DEFAULT now()
);
CREATE FUNCTION {notify}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify({channel}, '');
    RETURN NULL;
END $$;
CREATE TRIGGER notify_engine AFTER INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {notify}();
"""


def ddl(source: PostgresqlSource) -> str:
    """The statements that make the tables and the trigger; PostgreSQL 13 or newer."""
    return _DDL.format(table=source.table, dead=f"{source.table}_dead", notify=f"{source.table}_notify", channel=f"'{_channel(source)}'")


def _channel(source: PostgresqlSource) -> str:
    return source.table.replace(".", "_")[:_NAME_BYTES_MAX]


class PostgresqlOutbox:
    """See `engine.features.sources.readers.SourceReader`."""

    def __init__(self, source: PostgresqlSource) -> None:
        self._source = source
        table = sql.Identifier(*source.table.split("."))
        *schema, name = source.table.split(".")
        names = {"table": table, "dead": sql.Identifier(*schema, f"{name}_dead")}
        self._read = sql.SQL("SELECT seq, id::text, body::text FROM {table} ORDER BY seq LIMIT %s FOR UPDATE SKIP LOCKED").format(**names)
        self._delete = sql.SQL("DELETE FROM {table} WHERE seq = ANY(%s)").format(**names)
        self._bury = sql.SQL(
            "WITH gone AS (DELETE FROM {table} WHERE seq = %s RETURNING seq, id, body) "
            # An outbox that was emptied with RESTART IDENTITY counts anew.
            "INSERT INTO {dead} (seq, id, body, reason) SELECT greatest(seq, (SELECT max(seq) + 1 FROM {dead})), id, body, %s FROM gone"
        ).format(**names)
        self._lag = sql.SQL(
            "SELECT (SELECT count(*) FROM {table}), "
            "(SELECT coalesce(extract(epoch FROM min(created_at)) * 1000, 0) FROM {table}), "
            "(SELECT count(*) FROM {dead})"
        ).format(**names)
        self._dead = sql.SQL("SELECT id, reason, body::text FROM {dead} ORDER BY seq LIMIT %s").format(**names)
        self._redrive = sql.SQL(
            "WITH back AS (DELETE FROM {dead} RETURNING seq, id, body) "
            "INSERT INTO {table} (id, body) SELECT id, body FROM back ORDER BY seq"
        ).format(**names)
        self._listen = sql.SQL("LISTEN {channel}").format(channel=sql.Identifier(_channel(source)))
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._listening = False  # on this connection

    async def read(self, limit: int) -> list[SourceRow]:
        """The oldest free rows, which are locked from now on."""
        rows = await self._rows(self._read, limit)
        if not rows:
            await self._commit()
        return [SourceRow(seq, id, body.encode()) for seq, id, body in rows]

    async def settle(self, accepted: Sequence[SourceRow], dead: Sequence[tuple[SourceRow, str]]) -> None:
        """Commit what became of the rows, and free the others."""
        if accepted:
            await self._execute(self._delete, [row.key for row in accepted])
        for row, reason in dead:
            await self._execute(self._bury, row.key, reason.replace("\0", ""))
        await self._commit()

    async def wait(self) -> None:
        """Return after a NOTIFY, or after `poll_ms`; the first time at once, since rows may have come before the LISTEN."""
        connection = await self._connected()
        try:
            if not self._listening:
                await self._execute(self._listen)
                await self._commit()
                self._listening = True
                return
            for wait_s, count in ((self._source.poll_ms / 1000, 1), (0, None)):  # then those of rows that were read already
                async for _ in connection.notifies(timeout=wait_s, stop_after=count):
                    pass
        except psycopg.Error as error:
            raise await self._lost(error) from error

    async def lag(self) -> SourceLag:
        """Counts of both tables."""
        ((waiting, oldest_ms, dead),) = await self._rows(self._lag)
        await self._commit()
        return SourceLag(waiting, int(oldest_ms), dead)

    async def dead_rows(self, limit: int) -> list[DeadRow]:
        """The oldest rows of the table of dead ones."""
        rows = await self._rows(self._dead, limit)
        await self._commit()
        return [DeadRow(str(id), reason, body) for id, reason, body in rows]

    async def redrive(self) -> int:
        """Move the dead rows back under their ids, with new sequence numbers."""
        cursor = await self._execute(self._redrive)
        await self._commit()
        return cursor.rowcount

    async def close(self) -> None:
        """Close the connection; PostgreSQL rolls back what is open."""
        connection, self._connection, self._listening = self._connection, None, False
        if connection is not None:
            await connection.close()

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        if self._connection is None:
            try:
                async with asyncio.timeout(2 * _CONNECT_TIMEOUT_S):
                    connection = await psycopg.AsyncConnection.connect(
                        self._source.connection, connect_timeout=_CONNECT_TIMEOUT_S, application_name="notification engine"
                    )
                    self._connection = connection
                    await connection.execute(sql.SQL("SET statement_timeout = {}").format(_STATEMENT_TIMEOUT_MS))
                    await connection.commit()
            except (psycopg.Error, TimeoutError) as error:
                raise await self._lost(error) from error
        assert self._connection is not None
        return self._connection

    async def _execute(self, statement: sql.Composed, *arguments: Any) -> psycopg.AsyncCursor[Any]:
        connection = await self._connected()
        return await self._answer(connection.execute(statement, arguments or None))

    async def _rows(self, statement: sql.Composed, *arguments: Any) -> list[tuple[Any, ...]]:
        cursor = await self._execute(statement, *arguments)
        return await cursor.fetchall()

    async def _commit(self) -> None:
        connection = await self._connected()
        await self._answer(connection.commit())

    async def _answer(self, question: Awaitable[T]) -> T:
        """The server's answer. One that has vanished ends no connection, so that TCP would wait for it for a quarter of an hour."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await question
        except (psycopg.Error, TimeoutError) as error:
            raise await self._lost(error) from error

    async def _lost(self, error: Exception) -> StorageUnavailable:
        """Give the connection up, whose transaction is undone; returns the error for the caller."""
        await self.close()
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        return StorageUnavailable(f"source {self._source.name}: {first}")
