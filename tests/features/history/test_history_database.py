"""The database of the history, SQLite and a real PostgreSQL: rows once, in any order, deleted by age and by user; and what it refuses."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, inspect, text

from engine.core.wire.outcomes import AcceptedOutcome, SentOutcome
from engine.errors import ConfigError, StorageUnavailable
from engine.features.history import history_database
from engine.features.history.history_database import HistoryDatabase, database_url
from engine.features.history.outcome_rows import OutcomeRow, rows_of
from engine.features.history.tables import metadata
from tests.support.history_databases import emptied
from tests.support.postgresql_server import PostgresqlServer
from tests.support.waiting import until


def some_rows(count: int, *, user: str = "alice", first_ms: int = 1000, source: str = "s") -> list[OutcomeRow]:
    batch = [
        made
        for number in range(count)
        for made in (
            AcceptedOutcome(f"t:{user}", first_ms + number, f"m{number}", number + 1, "post.liked"),
            SentOutcome(f"t:{user}", first_ms + number, f"m{number}", number + 1, 1, "s1", "", 0, "edge-0"),
        )
    ]
    return list(rows_of(batch, source, 0))  # type: ignore[arg-type]


def stored(database: HistoryDatabase, **wanted: object) -> list[OutcomeRow]:
    return database.query(wanted, 1000)


def test_the_steps_make_the_schema_that_the_engine_uses(database: HistoryDatabase, url: str, tmp_path: Path) -> None:
    engine = create_engine(database_url(url, str(tmp_path)))
    found = inspect(engine)
    for table in metadata.sorted_tables:
        columns = {column["name"]: column for column in found.get_columns(table.name)}
        assert columns.keys() == {column.name for column in table.columns}
        assert {name for name, column in columns.items() if not column["nullable"]} == {c.name for c in table.columns if not c.nullable}
        for column in table.columns:
            assert column.type.compile(engine.dialect) == columns[column.name]["type"].compile(engine.dialect).replace("BIGINT", "BIGINT")
        assert {index["name"] for index in found.get_indexes(table.name)} == {index.name for index in table.indexes}
    engine.dispose()
    database.migrate()


def test_the_schema_of_a_newer_release_is_waited_for(database: HistoryDatabase, url: str, tmp_path: Path) -> None:
    engine = create_engine(database_url(url, str(tmp_path)))
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'history_9999'"))
    engine.dispose()
    with pytest.raises(StorageUnavailable, match=r"schema.*history_9999"):
        database.migrate()


def test_several_archivists_that_start_at_once_make_the_schema_once(url: str, tmp_path: Path) -> None:
    databases, failed = [HistoryDatabase(url, str(tmp_path)) for _ in range(4)], list[BaseException]()

    def migrate(database: HistoryDatabase) -> None:
        try:
            database.migrate()
            database.store(some_rows(1))
        except StorageUnavailable as error:
            failed.append(error)

    threads = [threading.Thread(target=migrate, args=(database,)) for database in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(stored(databases[0])) == 2
    for database in databases:
        database.close()


def test_a_row_that_is_there_already_is_stored_once(database: HistoryDatabase) -> None:
    rows = some_rows(50)
    assert database.store(rows) == 0
    assert database.store(rows[30:]) == 0
    assert database.store(some_rows(50)) == 0
    found = stored(database, tenant="t", user="alice")
    assert len(found) == 100
    assert [row["id"] for row in found] == sorted((row["id"] for row in rows), reverse=True)


def test_a_query_finds_by_user_message_and_time_page_by_page(database: HistoryDatabase) -> None:
    database.store([*some_rows(20), *some_rows(5, user="bob", first_ms=5000, source="b")])
    assert {row["user_id"] for row in stored(database, tenant="t", user="bob")} == {"bob"}
    assert stored(database, tenant="other") == []
    assert len(stored(database, tenant="t", message="m3")) == 4
    assert {row["at_ms"] for row in stored(database, since_ms=1005, until_ms=1008)} == {1005, 1006, 1007}
    seen, before = list[OutcomeRow](), {}
    while page := database.query({"tenant": "t", "user": "alice", **before}, 7):
        seen += page
        before = {"before": page[-1]["id"]}
    assert seen == stored(database, tenant="t", user="alice")


def test_rows_older_than_their_time_are_deleted_and_no_others(database: HistoryDatabase) -> None:
    database.store(some_rows(30))
    assert database.sweep(1010, 2000) == 20
    assert database.sweep(1010, 2000) == 0
    assert min(row["at_ms"] for row in stored(database)) == 1010


def test_an_erased_user_has_no_rows_also_not_those_that_arrive_later(database: HistoryDatabase) -> None:
    database.store([*some_rows(5), *some_rows(5, user="bob", source="b")])
    database.store(some_rows(1, first_ms=3000, source="after"), [("t:alice", 2000)])
    assert [row["at_ms"] for row in stored(database, user="alice")] == [3000, 3000]
    assert len(stored(database, user="bob")) == 10
    database.store(some_rows(9, first_ms=1500, source="late edge"))
    assert {row["at_ms"] for row in stored(database, user="alice")} == {3000}
    database.sweep(0, 2000 + 2 * 86_400_000)
    database.store(some_rows(1, first_ms=1500, source="too late"))
    assert len(stored(database, user="alice")) == 4, "the note of the erasure is gone after a day"


def test_an_erasure_deletes_rows_of_an_edge_with_a_fast_clock(database: HistoryDatabase) -> None:
    """An edge records that it cancels the user's timers, milliseconds before the shard erases the user."""
    database.store(some_rows(1, first_ms=2100), [("t:alice", 2000)])
    assert not stored(database, user="alice")


def test_no_statement_deletes_all_rows_of_an_erased_user(database: HistoryDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL ends one that takes too long, each time that it is repeated."""
    monkeypatch.setattr(history_database, "_SWEEP_ROWS", 30)
    deleted = list[int]()

    def note(_connection: object, cursor: Any, statement: str, *_: object) -> None:
        if statement.startswith("DELETE FROM history"):
            deleted.append(cursor.rowcount)

    event.listen(database._engine, "after_cursor_execute", note)
    database.store(some_rows(50))
    database.store([], [("t:alice", 10_000)])
    assert deleted == [30, 30, 30, 10, 0]
    assert not stored(database)


def test_the_latest_erasure_of_a_user_holds_in_whatever_order_they_come(database: HistoryDatabase) -> None:
    database.store([], [("t:alice", 3000), ("t:alice", 2000)])
    database.store([], [("t:alice", 1000)])
    database.store(some_rows(1, first_ms=2500, source="late"))
    assert stored(database, user="alice") == []


def test_a_row_that_the_database_refuses_is_left_out_alone(database: HistoryDatabase, url: str) -> None:
    rows = some_rows(3)
    rows[2] = {**rows[2], "event": None}
    assert database.store(rows) == 1
    assert len(stored(database)) == 5


def test_a_database_that_is_away_is_unavailable_in_one_line(tmp_path: Path) -> None:
    for url in ("postgresql://engine:hush@127.0.0.1:1/history", f"sqlite:///{tmp_path}/no/such/folder/history.db"):
        database = HistoryDatabase(url, str(tmp_path))
        with pytest.raises(StorageUnavailable, match="the database of the history") as caught:
            database.store(some_rows(1))
        assert "\n" not in str(caught.value)
        assert "hush" not in f"{caught.value} {database.shown}"
        database.close()


def test_a_connection_to_postgresql_asks_whether_the_server_is_there(tmp_path: Path) -> None:
    """Else a query that a vanished server had taken would wait for two hours."""
    database, given = HistoryDatabase("postgresql://nobody@127.0.0.1:1/none", str(tmp_path)), dict[str, Any]()
    event.listen(database._engine, "do_connect", lambda _dialect, _record, _arguments, options: given.update(options))
    with pytest.raises(StorageUnavailable):
        database.ping()
    assert given["keepalives_idle"] + given["keepalives_interval"] <= 10
    database.close()


def test_a_connection_to_postgresql_sends_only_the_options_of_its_url(tmp_path: Path) -> None:
    """PgBouncer refuses a connection that brings settings which it does not know."""
    for url, options in (("postgresql://nobody@127.0.0.1:1/none", None), ("postgresql://127.0.0.1:1/?options=-c%20a%3Db", "-c a=b")):
        database, given = HistoryDatabase(url, str(tmp_path)), dict[str, Any]()
        event.listen(database._engine, "do_connect", lambda _dialect, _record, _arguments, options, given=given: given.update(options))
        with pytest.raises(StorageUnavailable):
            database.ping()
        assert given.get("options") == options
        database.close()


def test_postgresql_ends_a_statement_that_takes_too_long(
    postgresql_server: PostgresqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_database, "_QUERY_TIMEOUT_MS", 50)
    database = HistoryDatabase(postgresql_server.url, str(tmp_path))
    with pytest.raises(StorageUnavailable, match="statement timeout"), database._transaction(writes=False) as connection:
        connection.execute(text("SELECT pg_sleep(60)"))
    database.close()


def test_a_connection_to_postgresql_keeps_nothing_between_transactions(postgresql_server: PostgresqlServer, tmp_path: Path) -> None:
    """A pooler of transactions gives each one any of its connections to the server."""
    database = HistoryDatabase(emptied(postgresql_server), str(tmp_path))
    database.migrate()
    for number in range(10):
        database.store(some_rows(1, source=str(number)), [("t:bob", number)])
    with database._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        assert connection.execute(text("SELECT count(*) FROM pg_prepared_statements")).scalar() == 0
        assert connection.execute(text("SELECT count(*) FROM pg_settings WHERE source = 'session' AND name LIKE '%timeout%'")).scalar() == 0
    database.close()


def test_an_erasure_finds_rows_that_another_archivist_stores(postgresql_server: PostgresqlServer, tmp_path: Path) -> None:
    url = emptied(postgresql_server)
    storing, erasing = HistoryDatabase(url, str(tmp_path)), HistoryDatabase(url, str(tmp_path))
    storing.migrate()
    erasure = threading.Thread(target=erasing.store, args=([], [("t:alice", 2000)]))

    def erase_now(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        """Between the look at erasures and the commit of the rows."""
        if "FROM erasures" in statement:
            erasure.start()
            asyncio.run(until(lambda: not erasure.is_alive() or waits_for_a_lock()))

    def waits_for_a_lock() -> bool:
        with erasing._engine.connect() as connection:
            return bool(connection.execute(text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")).scalar())

    event.listen(storing._engine, "after_cursor_execute", erase_now)
    storing.store(some_rows(1))
    erasure.join()
    assert not stored(erasing, user="alice")
    for database in (storing, erasing):
        database.close()


@pytest.mark.parametrize("url", ["postgresql://engine:secret@db/h", "postgresql://engine@db/h?password=secret&sslpassword=secret&port=6"])
def test_a_shown_url_has_no_password(url: str, tmp_path: Path) -> None:
    database = HistoryDatabase(url, str(tmp_path))
    assert "secret" not in database.shown
    assert database.shown.startswith("postgresql+psycopg://engine")
    database.close()


def test_a_url_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="history_url"):
        database_url("postgresql://host:port/x", str(tmp_path))


def test_a_file_is_in_the_data_directory_and_for_its_owner_only(tmp_path: Path) -> None:
    database = HistoryDatabase("sqlite:///rows.db", str(tmp_path / "data"))
    database.migrate()
    assert (tmp_path / "data" / "rows.db").stat().st_mode & 0o777 == 0o600
    database.close()
