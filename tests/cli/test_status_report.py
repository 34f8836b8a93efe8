"""What `engine status` prints, and what it says when the engine does not answer."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from engine.cli.app import app
from engine.cli.state_file import EngineState, write_state
from engine.cli.status_report import ask_status
from engine.config import Config
from engine.errors import EngineError


def test_the_token_of_an_admin_shows_the_figures_of_its_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"connections": 1, "users": 20, "stored_bytes": 3_400_000, "topics": 5, "signal_names": 6, "quotas": {}}
    monkeypatch.setattr("engine.cli.status_report.ask_status", lambda *_: {"tenant": "acme", **figures})
    ended = CliRunner().invoke(app, ["status"])
    told = "tenant acme: 1 connection, 20 users, 3.4 MB stored, 5 topics, 6 signal names\n"
    assert (ended.exit_code, ended.stdout) == (0, f"{told}figures of the engine need a token with the scope operator\n")


@pytest.mark.parametrize("quarantined", [0, 3])
def test_the_status_shows_latencies_and_says_so_when_stored_records_could_not_be_read(
    monkeypatch: pytest.MonkeyPatch, quarantined: int
) -> None:
    totals: dict[str, Any] = {"connections": 0, "pending": 0, "published": 0, "acknowledged": 0, "quarantined": quarantined}
    totals |= {"send_p50_ms": 2.5, "send_p95_ms": 7.0, "send_p99_ms": None}
    controller = {"role": "controller", "index": 0, "ready": True, "pid": 1, "node": "n", "cpu_pct": 0.0, "rss_bytes": 0, "restarts": 0}
    redis = {"alive": True, "restarts": 0}
    found = {"edges": [], "shards": [], "schedulers": [], "controller": controller, "redis": redis, "totals": totals}
    monkeypatch.setattr("engine.cli.status_report.ask_status", lambda *_: found)
    told = CliRunner().invoke(app, ["status"]).stdout
    assert ("3 stored records could not be read" in told) == bool(quarantined)
    assert re.search(r"latency, ms +p50 +p95 +p99", told)
    assert re.search(r"publish to send +2.5 +7 +-", told)
    assert re.search(r"send to ACK +- +- +-", told)


def test_the_status_has_a_row_for_each_of_several_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    totals = {"connections": 0, "pending": 0, "published": 0, "acknowledged": 0, "quarantined": 0}
    controller = {"role": "controller", "index": 0, "ready": True, "pid": 1, "node": "n", "cpu_pct": 0.0, "rss_bytes": 0, "restarts": 0}
    stores = [
        {"alive": True, "restarts": 1, "pid": 77, "node": "a:1", "used_memory_bytes": 2_000_000},
        {"alive": False, "restarts": 2, "node": "b:2"},
    ]
    redis = {"alive": False, "restarts": 3, "stores": stores}
    found = {"edges": [], "shards": [], "schedulers": [], "controller": controller, "redis": redis, "totals": totals}
    monkeypatch.setattr("engine.cli.status_report.ask_status", lambda *_: found)
    told = CliRunner().invoke(app, ["status"]).stdout
    assert re.search(r"redis-0 +77 +a:1 +ready +2 +1", told)
    assert re.search(r"redis-1 +b:2 +silent +0 +2", told)


def test_the_status_shows_what_waits_in_each_source(monkeypatch: pytest.MonkeyPatch) -> None:
    totals = {"connections": 0, "pending": 0, "published": 0, "acknowledged": 0, "quarantined": 0}
    controller = {"role": "controller", "index": 0, "ready": True, "pid": 1, "node": "n", "cpu_pct": 0.0, "rss_bytes": 0, "restarts": 0}
    row = {**controller, "role": "ingester", "alive": True, "source": "orders", "waiting": 5, "lag_ms": 1500, "dead_rows": 1}
    ingesters = [{**row, "state": "ok"}, {**row, "index": 1, "source": "clicks", "state": "the engine answers 429"}, {**row, "source": ""}]
    redis = {"alive": True, "restarts": 0}
    found = {
        "edges": [],
        "shards": [],
        "schedulers": [],
        "ingesters": ingesters,
        "controller": controller,
        "redis": redis,
        "totals": totals,
    }
    monkeypatch.setattr("engine.cli.status_report.ask_status", lambda *_: found)
    told = CliRunner().invoke(app, ["status"]).stdout
    assert "source orders: 5 rows wait, the oldest 1.5 s, 1 dead" in told
    assert "source clicks: the engine answers 429, 5 rows wait" in told
    assert re.search(r"ingester-1 ", told)


@pytest.mark.parametrize(("connections", "counted"), [(0, "0 connections,"), (1, "1 connection,"), (2, "2 connections,")])
def test_the_status_counts_one_connection_in_the_singular(monkeypatch: pytest.MonkeyPatch, connections: int, counted: str) -> None:
    totals = {"connections": connections, "pending": 0, "published": 0, "acknowledged": 0}
    controller = {"role": "controller", "index": 0, "ready": True, "pid": 1, "node": "n", "cpu_pct": 0.0, "rss_bytes": 0, "restarts": 0}
    found = {
        "edges": [],
        "shards": [],
        "schedulers": [],
        "controller": controller,
        "redis": {"alive": True, "restarts": 0},
        "totals": totals,
    }
    monkeypatch.setattr("engine.cli.status_report.ask_status", lambda *_: found)
    assert counted in CliRunner().invoke(app, ["status"]).stdout


@pytest.mark.parametrize(
    ("snapshots", "lines"),
    [
        ({"count": 0, "failures": 1, "error": "disk full"}, ["0 snapshots, none yet", "snapshots: disk full"]),
        (
            {"count": 2, "failures": 0, "error": "", "name": "n", "bytes": 1_500_000, "age_s": 125.0},
            ["2 snapshots, the last 2 min ago, 1.5 MB"],
        ),
    ],
)
def test_the_status_shows_the_last_snapshot_and_why_one_failed(
    monkeypatch: pytest.MonkeyPatch, snapshots: dict[str, Any], lines: list[str]
) -> None:
    totals = dict.fromkeys(("connections", "pending", "published", "acknowledged"), 0)
    controller = {"role": "controller", "index": 0, "ready": True, "pid": 1, "node": "n", "cpu_pct": 0.0, "rss_bytes": 0, "restarts": 0}
    redis = {"alive": True, "restarts": 0, "snapshots": snapshots}
    found = {"edges": [], "shards": [], "schedulers": [], "controller": controller, "redis": redis, "totals": totals}
    monkeypatch.setattr("engine.cli.status_report.ask_status", lambda *_: found)
    printed = CliRunner().invoke(app, ["status"]).stdout.splitlines()
    assert [line for line in printed if "snapshots" in line] == lines


def test_the_status_of_a_busy_engine_fits_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(role: str, index: int, **more: int) -> dict[str, object]:
        process = {
            "ready": True,
            "pid": 1_234_567,
            "node": "192.168.100.200",
            "cpu_pct": 100.0,
            "rss_bytes": 9_999_000_000,
            "restarts": 123,
        }
        return {"role": role, "index": index, **process, **more}

    totals = dict.fromkeys(("connections", "pending", "published", "acknowledged", "quarantined"), 0)
    redis = {"alive": True, "restarts": 0, "pid": 1_234_567, "used_memory_bytes": 9_999_000_000}
    found = {"edges": [row("edge", 10, connections=99_999)], "shards": [row("shard", 10, connections=99_999, pending=9_999_999)]}
    found |= {"schedulers": [row("scheduler", 1)], "controller": row("controller", 0), "redis": redis, "totals": totals}  # type: ignore[dict-item]
    monkeypatch.setattr("engine.cli.status_report.ask_status", lambda *_: found)
    told = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["status"]).stdout
    assert "restarts conns pending" in told
    assert "99999 9999999" in told
    assert "\u2026" not in told


@contextmanager
def server_that_answers(answer: bytes) -> Iterator[str]:
    """A server that answers one request with these bytes and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", "Service Unavailable"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{", "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "Expected `object`"),
        (b"nonsense\r\n\r\n", "nonsense"),
        (b"", "closed connection"),
    ],
)
def test_an_engine_that_does_not_answer_is_one_line_with_its_address_and_logs(tmp_path: Path, answer: bytes, told: str) -> None:
    own = psutil.Process()
    facts = {"version": "1", "ray_address": "", "ray_logs": "/the/logs", "namespace": "engine", "redis_url": ""}
    with server_that_answers(answer) as url:
        write_state(tmp_path, EngineState(url=url, pid=own.pid, pid_started_s=own.create_time(), **facts))
        with pytest.raises(EngineError, match=told) as caught:
            ask_status(Config(data_dir=str(tmp_path), jwt_secret="x" * 32))
    reason = str(caught.value)
    assert reason.startswith(f"the engine at {url} does not answer: ")
    assert reason.endswith(f"; the logs of pid {own.pid}: /the/logs")
    assert reason.isprintable(), "one line"


def test_an_engine_with_another_secret_is_explained(tmp_path: Path) -> None:
    own = psutil.Process()
    facts = {"version": "1", "ray_address": "", "ray_logs": "/the/logs", "namespace": "engine", "redis_url": ""}
    body = b'{"detail": "the token\'s signature is not good"}'
    with server_that_answers(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)) as url:
        write_state(tmp_path, EngineState(url=url, pid=own.pid, pid_started_s=own.create_time(), **facts))
        with pytest.raises(EngineError, match=r"does not accept a token signed with jwt_secret .the token's signature is not good"):
            ask_status(Config(data_dir=str(tmp_path), jwt_secret="x" * 32))


def test_what_an_edge_does_less_of_is_shown_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"role": "edge", "index": 1, "ready": True, "pid": 1, "node": "n", "cpu_pct": 0.0, "rss_bytes": 0, "restarts": 0}
    totals = dict.fromkeys(("connections", "pending", "published", "acknowledged", "quarantined"), 0)
    found = {"edges": [{**row, "degraded": {"rules": "/r.toml:3: rule [x]"}}], "shards": [], "schedulers": [], "controller": row}
    found |= {"redis": {"alive": True, "restarts": 0}, "totals": totals}
    monkeypatch.setattr("engine.cli.status_report.ask_status", lambda *_: found)
    assert "edge-1: rules: /r.toml:3: rule [x]" in CliRunner().invoke(app, ["status"]).stdout
