"""Ingest: rows of a PostgreSQL outbox read by the engine, and the same rows over HTTP in batches of 250; then with processes killed.

First what a row costs the engine by either way, in turns, by process. The rows are in the table before the meter starts; the database and
the publisher over HTTP are not counted. Then transactions of 100 rows are inserted, a tenth of which rolls back, while ingester and
database are killed in turn. Every user then fetches its messages: `lost`, `twice` and `rolled_back` count wrong ones, and must be 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import threading
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import psycopg

from bench.processes import CpuMeter
from bench.progress import Phases
from bench.server import Engine, engine
from bench.system import per_message_us
from engine.features.sources.core import PostgresqlSource, sources_of
from engine.features.sources.postgresql_outbox import ddl
from tests.support.load.poster import Poster
from tests.support.postgresql_server import PostgresqlServer

BATCH = 250
_TRANSACTION = 100
_LOOK_S = 0.1
_KILL_S = 3.0
_PATIENCE_S = 300
_WARM = 100_000_000  # numbers of rows that begin here are not measured
_INSERT = "INSERT INTO notification_outbox (id, body) VALUES (%s, %s)"


def _row(number: int, users: int) -> dict[str, Any]:
    return {"user": f"u{number % users}", "type": "order.paid", "data": {"n": number, "order": f"order-{number:08}", "total": "17.00"}}


def _insert(connection: psycopg.Connection[Any], numbers: Sequence[int], users: int) -> None:
    rows = [(UUID(int=number + 1), json.dumps(_row(number, users))) for number in numbers]
    with connection.cursor() as cursor:
        cursor.executemany(_INSERT, rows)


def _wait_empty(source: PostgresqlSource) -> None:
    """Return when the table has no row, also while the server is killed meanwhile."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(source.connection) as connection:
            if connection.execute("SELECT NOT EXISTS (SELECT FROM notification_outbox)").fetchone() == (True,):
                return
        time.sleep(_LOOK_S)
    raise SystemExit("the ingester does not empty the table")


def _ingester_pid(running: Engine) -> int:
    status: Any = asyncio.run(running.status())
    return next((row.get("pid", 0) for row in status.get("ingesters", ()) if row.get("alive")), 0)


def _by_source(running: Engine, source: PostgresqlSource, numbers: Sequence[int], users: int) -> dict[str, float]:
    """CPU seconds by role. One transaction makes all rows visible at once."""
    with psycopg.connect(source.connection) as connection:
        _insert(connection, numbers, users)
        meter = CpuMeter(running.processes)
    _wait_empty(source)
    return meter.spent_s()


async def _by_http(running: Engine, numbers: Sequence[int], users: int) -> dict[str, float]:
    """The same over one connection, a batch at a time, as the ingester sends them."""
    publisher = await running.publisher(users)
    bodies = [
        [{**_row(number, users), "id": str(UUID(int=number + 1))} for number in numbers[i : i + BATCH]]
        for i in range(0, len(numbers), BATCH)
    ]
    meter = CpuMeter(running.processes)
    for items in bodies:
        await publisher.publish_items(items)
    spent = meter.spent_s()
    publisher.close()
    return spent


async def _received(running: Engine, users: int) -> Counter[int]:
    """How often each number was sent, over long polling. The cursor of a poll acknowledges."""
    numbers = Counter[int]()
    for user in range(users):
        poster = await Poster.open(running.port, f"Authorization: Bearer {running.token(f'u{user}')}\r\n")
        cursor = ""
        while True:
            status, _, body = await poster.request("GET", f"/v1/poll?wait=0{f'&last_event_id={cursor}' if cursor else ''}")
            found = json.loads(body)
            if status != 200:
                raise SystemExit(f"a poll was answered with {status}: {body[:200]!r}")
            if not found["messages"]:
                break
            numbers.update(message["data"]["n"] for message in found["messages"] if message["type"] != "gap")
            cursor = found["last_event_id"]
        poster.close()
    return numbers


class _Killer:
    """Kills the ingester and the database in turn until it is told to stop."""

    def __init__(self, running: Engine, server: PostgresqlServer) -> None:
        self.kills = Counter[str]()
        self._running, self._server = running, server
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._kill)

    def __enter__(self) -> _Killer:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _kill(self) -> None:
        while not self._stopped.wait(_KILL_S):
            if self.kills["ingester"] > self.kills["database"]:
                self._server.kill()
                self._server.start()
                self.kills["database"] += 1
            elif pid := _ingester_pid(self._running):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.kills["ingester"] += 1


def _transactions(source: PostgresqlSource, first: int, rows: int, users: int) -> set[int]:
    """The numbers of the rows whose transactions were committed. One that the database refused or lost is made again."""
    chance, committed = random.Random(7), set[int]()
    for start in range(first, first + rows, _TRANSACTION):
        numbers = range(start, start + _TRANSACTION)
        rolls_back = chance.random() < 0.1
        while True:
            try:
                with psycopg.connect(source.connection) as connection:
                    _insert(connection, numbers, users)
                    if rolls_back:
                        connection.rollback()
                break
            except psycopg.OperationalError:
                time.sleep(_LOOK_S)
        if not rolls_back:
            committed.update(numbers)
    return committed


def _each_once(running: Engine, server: PostgresqlServer, source: PostgresqlSource, first: int, args: Namespace) -> dict[str, Any]:
    phases: Phases = args.phases
    began = time.monotonic()
    with phases.phase(f"{args.rows} rows, with kills"), _Killer(running, server) as killer:
        committed = _transactions(source, first, args.rows, args.users)
        _wait_empty(source)
    seconds = time.monotonic() - began
    with phases.phase("fetching"):
        received = asyncio.run(_received(running, args.users))
    of_run = {number: count for number, count in received.items() if first <= number < _WARM}
    with psycopg.connect(source.connection) as connection:
        dead = connection.execute("SELECT count(*) FROM notification_outbox_dead").fetchone()
    return {
        "bench": "ingest",
        "system": running.name,
        "case": {"rows": args.rows, "kills": True},
        "committed": len(committed),
        "lost": len(committed - of_run.keys()),
        "twice": sum(count > 1 for count in of_run.values()),
        "rolled_back": len(of_run.keys() - committed),
        "dead": 0 if dead is None else dead[0],
        "kills": dict(killer.kills),
        "seconds": round(seconds, 1),
    }


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--rows", type=int, default=100_000, help="of the run with kills; a quarter each of the others (default %(default)s)"
    )
    parser.add_argument("--users", type=int, default=1000, help="that the rows are for, in turn (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """Start a database and an engine, measure both ways twice, then kill."""
    server = PostgresqlServer()
    try:
        server.start()
        text = json.dumps([{"kind": "postgresql", "name": "orders", "connection": server.url}])
        (source,) = sources_of(text)
        assert isinstance(source, PostgresqlSource)
        with psycopg.connect(source.connection) as connection:
            connection.execute(ddl(source).encode())
        with engine(sources=text) as running:
            while not _ingester_pid(running):
                time.sleep(_LOOK_S)
            count, spent = args.rows // 4, {"source": Counter[str](), "http": Counter[str]()}
            _by_source(running, source, range(_WARM, _WARM + 2000), args.users)
            for turn in range(2):
                numbers = [range(start, start + count) for start in (2 * turn * count, (2 * turn + 1) * count)]
                with args.phases.phase("rows by the source"):
                    spent["source"].update(_by_source(running, source, numbers[0], args.users))
                with args.phases.phase("rows over HTTP"):
                    spent["http"].update(asyncio.run(_by_http(running, numbers[1], args.users)))
            for way, seconds in spent.items():
                cost = per_message_us(seconds, 2 * count)
                yield {"bench": "ingest", "system": running.name, "case": {"rows": 2 * count, "way": way}, "cpu_us_per_row": cost}
            yield _each_once(running, server, source, 4 * count, args)
    finally:
        server.close()
