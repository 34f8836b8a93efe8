"""Points of the load: what was added between two of them, whatever dies, joins or is silent meanwhile."""

from __future__ import annotations

from typing import Any

from engine.features.inspection.core import LoadPoint, LoadWatch, memory_of_servers

TOTALS: dict[str, Any] = {"connections": 3, "users": 4, "pending": 5, "send_p50_ms": 1.0, "send_p95_ms": None, "ack_p95_ms": 2.0}
BEGIN_MS = 1_000_000


def row(role: str = "shard", index: int = 0, pid: int = 1, started_ms: int = 0, **figures: Any) -> dict[str, Any]:
    about = {"role": role, "index": index, "pid": pid, "started_ms": started_ms, "alive": True, "ready": True, "cpu_pct": 10.0}
    return {**about, **figures}


def observe(watch: LoadWatch, second: int, *rows: dict[str, Any]) -> LoadPoint | None:
    return watch.observe(rows, TOTALS, 7, second * 1000, BEGIN_MS + second * 1000)


def test_a_point_has_what_was_added_since_the_one_before() -> None:
    watch = LoadWatch(10_000)
    assert observe(watch, 0, row(published=100), row("edge", shed={"low": 5, "high": 0})) is None
    assert not watch.due(9_999)
    assert watch.due(10_000)
    rows = row(published=130, acknowledged=7), row("edge", shed={"low": 6, "high": 1}), row("scheduler", armed=9, fired=2)
    point = observe(watch, 10, *rows)
    assert point is not None
    assert (point.at, point.over_ms, point.published, point.acknowledged, point.shed) == (BEGIN_MS + 10_000, 10_000, 30, 7, 2)
    assert (point.connections, point.users, point.pending, point.timers, point.redis_bytes) == (3, 4, 5, 9, 7)
    assert (point.shard_cpu_pct, point.send_p50_ms, point.send_p95_ms) == (10.0, 1.0, None)


def test_another_process_counts_from_zero_and_a_silent_one_later() -> None:
    watch = LoadWatch(10_000)
    observe(watch, 0, row(published=100), row(index=1, published=50))
    restarted, silent = row(pid=2, started_ms=BEGIN_MS + 4000, published=8), row(index=1, published=70) | {"alive": False}
    point = observe(watch, 10, restarted, silent)
    assert point is not None
    assert point.published == 8
    point = observe(watch, 20, row(pid=2, started_ms=BEGIN_MS + 4000, published=8), row(index=1, published=70))
    assert point is not None
    assert point.published == 20


def test_a_process_that_was_there_before_the_controller_makes_no_peak() -> None:
    watch = LoadWatch(10_000)
    observe(watch, 0, row(published=100))
    point = observe(watch, 10, row(published=100), row(index=1, started_ms=BEGIN_MS - 1, published=9999))
    assert point is not None
    assert point.published == 0
    new = row(index=2, started_ms=BEGIN_MS + 15_000, published=5)
    point = observe(watch, 20, row(published=100), row(index=1, started_ms=BEGIN_MS - 1, published=10_000), new)
    assert point is not None
    assert point.published == 6


def test_a_server_with_several_stores_is_counted_once() -> None:
    stores = [{"used_memory_bytes": used} for used in (50, 51, 7)]
    assert memory_of_servers(stores, {0: "a", 1: "a", 2: "b"}) == 58
