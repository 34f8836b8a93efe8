"""`engine source`: the commands, on a real PostgreSQL, without an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from redis import Redis
from typer.testing import CliRunner

from engine.__main__ import app
from engine.features.audit.keys import AUDIT_KEY
from tests.support.history_databases import emptied
from tests.support.postgresql_server import PostgresqlServer


def run(*arguments: str, sources: str, exit_code: int = 0, redis_url: str = "") -> str:
    result = CliRunner().invoke(app, ["source", *arguments], env={"ENGINE_SOURCES": sources, "ENGINE_REDIS_URL": redis_url})
    assert result.exit_code == exit_code, result.output
    return result.output if result.exception is None or exit_code == 0 else str(result.exception)


@pytest.fixture
def sources(postgresql_server: PostgresqlServer) -> str:
    return json.dumps([{"kind": "postgresql", "name": "orders", "connection": emptied(postgresql_server), "table": "public.outbox"}])


def acts(redis_url: str) -> list[Any]:
    with Redis.from_url(redis_url) as client:
        return [fields for _, fields in client.xrange(AUDIT_KEY)]  # type: ignore[union-attr]


def test_the_tables_are_made_by_the_printed_ddl_and_their_rows_are_listed_and_redriven(
    sources: str, redis_server_url: str, data_dir: Path
) -> None:
    (source,) = json.loads(sources)
    with psycopg.connect(source["connection"]) as connection:
        connection.execute(run("ddl", "orders", sources=sources).encode())
        connection.execute("INSERT INTO outbox (body) VALUES ('{}')")
        connection.execute("INSERT INTO outbox_dead (seq, id, body, reason) VALUES (9, gen_random_uuid(), '{\"n\": 1}', 'no user')")
    assert run("list", sources=sources).startswith("orders  waiting=1 oldest=")
    assert "no user" in run("dead", "orders", sources=sources)
    assert run("redrive", "orders", sources=sources, redis_url=redis_server_url) == "redriven 1\n"
    act = acts(redis_server_url)[-1]
    assert (act[b"by"], act[b"act"], act[b"on"], act[b"details"]) == (b"engine-source", b"redrive_source", b"source/orders", b'{"rows":1}')
    assert "waiting=2" in run("list", sources=sources)
    assert run("dead", "orders", sources=sources) == ""
    assert "not in the audit log: no engine runs" in run("redrive", "orders", sources=sources)
    away = f"unix://{data_dir}/none.sock"
    assert "redriven 0\nnot in the audit log: " in run("redrive", "orders", sources=sources, redis_url=away)


def test_a_table_with_the_longest_name_takes_rows_and_wakes_its_reader(sources: str) -> None:
    schema, table = "s" * 41, "t" * 41
    (source,) = json.loads(sources)
    longest = json.dumps([{**source, "table": f"{schema}.{table}"}])
    with psycopg.connect(source["connection"], autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
        connection.execute(run("ddl", "orders", sources=longest).encode())
        connection.execute(f"LISTEN {f'{schema}_{table}'[:63]}".encode())
        connection.execute(f"INSERT INTO {schema}.{table} (body) VALUES ('{{}}')".encode())
        assert len(list(connection.notifies(timeout=10, stop_after=1))) == 1
    assert "waiting=1" in run("list", sources=longest)


def test_a_source_that_is_away_hides_no_other(redis_server_url: str) -> None:
    connections = ("redis://127.0.0.1:1", redis_server_url)
    given = [{"kind": "redis", "name": f"s{n}", "connection": url, "stream": "of-nobody"} for n, url in enumerate(connections)]
    sources = json.dumps(given)
    listed = CliRunner().invoke(app, ["source", "list"], env={"ENGINE_SOURCES": sources})
    away, there = listed.stdout.splitlines()
    assert (away[:27], there, listed.exit_code) == ("source s0: ConnectionError ", "s1  waiting=0 oldest=0.0s dead=0", 1)


def test_an_unknown_source_is_answered_with_those_there_are(sources: str) -> None:
    assert "no source 'clicks'; the settings have orders" in run("dead", "clicks", sources=sources, exit_code=1)
    assert "the settings have none" in run("dead", "clicks", sources="", exit_code=1)
