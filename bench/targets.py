"""What the engine is meant to reach, as data: a figure of a result, the limit to reach first, and the one after that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple


class Target(NamedTuple):
    """The figure at `path` of the engine's result of `bench` whose case has all of `case` is at most `first`, then at most `then`."""

    text: str
    unit: str
    bench: str
    case: Mapping[str, object]
    path: tuple[str, ...]
    first: float
    then: float


_CPU: Final = ("cpu_us_per_message", "total")
_ONE: Final = {"publishers": 1}
_SILENT: Final = {"connections": 4000}
_STORM: Final = {"users": 1000, "missed_each": 20}
_TIMERS: Final = {"timers": 50_000, "until": "journalled by the shard"}


def _hosts(shards: int) -> Mapping[str, object]:
    """Two hosts at the fixed rate, with so many shards behind TCP."""
    return {"hosts": 2, "shards": shards, "carrier": "tcp", "load": 2000}


def _each(count: int) -> Mapping[str, object]:
    """So many shards, edges and publishers."""
    return {"shards": count, "publishers": count}


TARGETS: Final = (
    Target("delivery: server CPU per acknowledged, durable message", "us", "delivery", _ONE, _CPU, 40, 20),
    Target("delivery: the same with four publishers", "us", "delivery", {"publishers": 4}, _CPU, 40, 20),
    # What Centrifugo with Redis took of this work on another evening, without storing or acknowledging: 120 us, 282 us at 2 000/s.
    Target("one message per request over 128 connections: CPU", "us", "delivery", {"publishers": 128}, _CPU, 120, 120),
    Target("2 000/s: CPU", "us", "latency", {"rate": 2000}, _CPU, 200, 200),
    Target("latency at 2 000/s, p50", "ms", "latency", {"rate": 2000}, ("latency_ms", "p50"), 3, 1.5),
    Target("latency at 2 000/s, p99", "ms", "latency", {"rate": 2000}, ("latency_ms", "p99"), 5, 4),
    Target("latency at 10 000/s, p99", "ms", "latency", {"rate": 10_000}, ("latency_ms", "p99"), 86, 30),
    Target("broadcast to 2 000: CPU per delivery", "us", "fanout", {"connections": 2000}, ("cpu_us_per_delivery", "total"), 20, 12),
    Target("broadcast to 2 000: the last client has it", "ms", "fanout", {"connections": 2000}, ("last_client_ms", "p50"), 45, 30),
    Target("idle connection, all processes", "KiB", "idle", {"connections": 4000}, ("kib_per_connection", "total"), 30, 15),
    Target("idle connected user at the shard", "KiB", "idle", {"connections": 4000}, ("kib_per_connection", "shard"), 2, 1),
    Target("idle engine", "% of a core", "idle", {}, ("cpu_pct_of_a_core_without_connections", "total"), 5, 3),
    Target("idle engine with 4 000 silent connections", "% of a core", "idle", _SILENT, ("cpu_pct_of_a_core", "total"), 5, 4),
    Target("storm: CPU per recovered message", "us", "storm", _STORM, ("cpu_us_per_recovered", "total"), 20, 8),
    Target("storm: messages lost", "", "storm", _STORM, ("lost",), 0, 0),
    Target("timers: CPU per durable timer, to the shard", "us", "timers", _TIMERS, ("cpu_us_per_timer", "total"), 60, 20),
    Target("timers: lateness at the scheduler, p99", "ms", "timers", _TIMERS, ("scheduler_lateness_ms_at_most", "p99"), 10, 5),
    Target("scaling: cost with 2 shards, edges and publishers, of that with 1", "", "scaling", _each(2), ("cost_ratio",), 1.25, 1.25),
    Target("scaling: cost with 4 shards, edges and publishers, of that with 1", "", "scaling", _each(4), ("cost_ratio",), 1.25, 1.25),
    Target("scaling: the load of one publisher on 2 shards and edges", "", "scaling", {"shards": 2} | _ONE, ("cost_ratio",), 1.25, 1.25),
    Target("scaling: the load of one publisher on 4 shards and edges", "", "scaling", {"shards": 4} | _ONE, ("cost_ratio",), 1.25, 1.25),
    Target(
        "Redis for a user who is away with a message", "bytes", "storage", {}, ("redis_bytes", "offline_user_with_one_message"), 1200, 1200
    ),
    Target("Redis for an id of a publisher, for a day", "bytes", "storage", {}, ("redis_bytes", "accepted_id"), 45, 45),
    Target(
        "high priority under three times the capacity: p99, of that beside half of it",
        "times",
        "overload",
        {"times": 3.0},
        ("high_p99_of_beside_half",),
        3,
        3,
    ),
    Target(
        "two hosts, 4 shards and edges at 2 000/s: CPU, of that on one", "", "cluster", _hosts(4), ("of_one_host", "cpu_ratio"), 1.3, 1.3
    ),
    Target(
        "two hosts, 4 shards and edges at 2 000/s: p50 above that on one", "ms", "cluster", _hosts(4), ("of_one_host", "p50_more_ms"), 1, 1
    ),
    Target("two hosts, 24 shards at 2 000/s, p99", "ms", "cluster", _hosts(24), ("latency_ms", "p99"), 25, 25),
)


class Comparison(NamedTuple):
    """The figure at `path` of all systems' results of `bench` whose case has all of `case`.

    The engine's is to be at most `first` times the peer's, then at most `then` times; with `at_least` at least that. Without a peer there
    is no target.
    """

    text: str
    unit: str
    bench: str
    case: Mapping[str, object]
    path: tuple[str, ...]
    peer: str = ""
    first: float = 0.0
    then: float = 0.0
    at_least: bool = False


_BROKER: Final = "mosquitto"
_CENTRIFUGO: Final = "centrifugo"
_ALL: Final = {"connections": 2000}
_MANY: Final = {"publishers": 128}

COMPARISONS: Final = (
    Comparison("full load, 250 per request: CPU", "us", "delivery", _ONE, _CPU, _BROKER, 0.75, 0.6),
    Comparison("one per request, 128 connections: CPU", "us", "delivery", _MANY, _CPU, _CENTRIFUGO, 1.4, 1.0),
    Comparison("the same, a second", "messages", "delivery", _MANY, ("per_s",), _CENTRIFUGO, 0.9, 1.0, at_least=True),
    Comparison("one per request, 16 connections: CPU", "us", "delivery", {"publishers": 16}, _CPU),
    Comparison("the same, a second", "messages", "delivery", {"publishers": 16}, ("per_s",)),
    Comparison("2 000/s: CPU", "us", "latency", {"rate": 2000}, _CPU, _CENTRIFUGO, 0.9, 0.7),
    Comparison("2 000/s: p50", "ms", "latency", {"rate": 2000}, ("latency_ms", "p50")),
    Comparison("2 000/s: p99", "ms", "latency", {"rate": 2000}, ("latency_ms", "p99")),
    Comparison("broadcast to 2 000: CPU per delivery", "us", "fanout", _ALL, ("cpu_us_per_delivery", "total"), _BROKER, 1.7, 1.0),
    Comparison("broadcast to 2 000: the last client has it", "ms", "fanout", _ALL, ("last_client_ms", "p50"), _BROKER, 1.2, 1.0),
    Comparison("idle connection", "KiB", "idle", {"connections": 4000}, ("kib_per_connection", "total")),
    Comparison("storm: CPU per recovered", "us", "storm", {"users": 1000}, ("cpu_us_per_recovered", "total"), _BROKER, 2.0, 1.3),
    Comparison("storm: CPU per stored", "us", "storm", {"users": 1000}, ("cpu_us_per_stored", "total"), _BROKER, 2.0, 1.3),
)


def figure(result: Mapping[str, Any], *path: str) -> float | None:
    """The number at `path`, of several runs their median; None when it is not there."""
    found: Any = result
    for name in path:
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    if isinstance(found, Mapping):
        found = found.get("median")
    return float(found) if isinstance(found, int | float) else None


def of_target(target: Target, results: Iterable[Mapping[str, Any]]) -> float | None:
    """The engine's figure; None when it was not measured."""
    for result in results:
        if result["bench"] == target.bench and result.get("system") == "engine" and target.case.items() <= result["case"].items():
            return figure(result, *target.path)
    return None


def compared(comparison: Comparison, results: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """System -> its figure, of those that were measured."""
    found = {}
    for result in results:
        if result["bench"] == comparison.bench and comparison.case.items() <= result["case"].items():
            value = figure(result, *comparison.path)
            if value is not None:
                found.setdefault(result["system"], value)
    return found


def verdict(target: Target | Comparison, reached: float) -> str:
    """In words. What a comparison has reached is a ratio."""
    sign = -1 if isinstance(target, Comparison) and target.at_least else 1
    if sign * reached <= sign * target.then:
        return "met" if target.first == target.then else "second met"
    return "first met" if sign * reached <= sign * target.first else "not met"
