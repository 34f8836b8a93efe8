"""The load of the engine over time: one point every few seconds, out of what its actors count.

    a round of `stats()` --observe--> nothing, until `period_ms` after the point before; then a point

Actors count since their start. A point has what was added since the point before: a process that was started since counts from zero. The
first round of a controller gives no point, and a process that it finds later and that was there before adds nothing yet: what these had
counted by the last point of its predecessor is not known. So a chart has a gap there, and no false peak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

_SHARD_COUNTERS: Final = ("published", "delivered", "acknowledged", "retried", "expired", "dead_lettered")
_COUNTERS: Final = {"shard": _SHARD_COUNTERS, "scheduler": ("fired",), "edge": ("shed",)}

POINT_MS: Final = 10_000
"""Between two points, which charts show."""

POINTS_MAX: Final = 360
"""An hour of them: some 120 KB in storage, and in an answer."""


class LoadPoint(Struct, frozen=True, omit_defaults=True):
    """The load of some seconds, which ended at `at` (ms since the epoch) and lasted `over_ms`.

    Counts of that time: messages by what became of them, timers that fired, requests that were shed for load. As of its end: connections,
    users in memory, pending messages, timers that wait; the share of a core that each role took, in percent; quantiles of latencies, None
    where nothing was measured; bytes of Redis.
    """

    at: int
    over_ms: int
    published: int = 0
    delivered: int = 0
    acknowledged: int = 0
    retried: int = 0
    expired: int = 0
    dead_lettered: int = 0
    fired: int = 0
    shed: int = 0
    connections: int = 0
    users: int = 0
    pending: int = 0
    timers: int = 0
    edge_cpu_pct: float = 0.0
    shard_cpu_pct: float = 0.0
    scheduler_cpu_pct: float = 0.0
    send_p50_ms: float | None = None
    send_p95_ms: float | None = None
    ack_p95_ms: float | None = None
    redis_bytes: int = 0


class LoadWatch:
    """Makes points out of the rows of the status.

    Args:
        period_ms: time between two points.
    """

    def __init__(self, period_ms: float) -> None:
        self._period_ms = period_ms
        self._at_ms: float | None = None  # of the last point, monotonic
        self._at_wall_ms = 0
        self._counted: dict[tuple[str, int], tuple[Any, dict[str, int]]] = {}  # actor -> its process, and its counters then

    def due(self, now_ms: float) -> bool:
        """Whether `observe` is to be called."""
        return self._at_ms is None or now_ms - self._at_ms >= self._period_ms

    def observe(
        self, rows: Sequence[Mapping[str, Any]], totals: Mapping[str, Any], redis_bytes: int, now_ms: float, wall_ms: int
    ) -> LoadPoint | None:
        """The point that ends now; None when it is the first one.

        Args:
            rows: of all actors, as in the status.
            totals: of the status.
            now_ms: monotonic; `wall_ms`: since the epoch.
        """
        begun_ms, self._at_ms = self._at_ms, now_ms
        added = self._count(rows)
        self._at_wall_ms = wall_ms
        if begun_ms is None:
            return None
        timers = sum(int(row.get("armed", 0)) for row in rows if row["role"] == "scheduler")
        cpu = {role: round(sum(row["cpu_pct"] for row in rows if row["role"] == role), 1) for role in _COUNTERS}
        return LoadPoint(
            at=wall_ms,
            over_ms=int(now_ms - begun_ms),
            **added,
            connections=totals["connections"],
            users=totals["users"],
            pending=totals["pending"],
            timers=timers,
            edge_cpu_pct=cpu["edge"],
            shard_cpu_pct=cpu["shard"],
            scheduler_cpu_pct=cpu["scheduler"],
            send_p50_ms=totals["send_p50_ms"],
            send_p95_ms=totals["send_p95_ms"],
            ack_p95_ms=totals["ack_p95_ms"],
            redis_bytes=redis_bytes,
        )

    def _count(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
        """What was added to each counter since it was called before."""
        added = {name: 0 for names in _COUNTERS.values() for name in names}
        for row in rows:
            names = _COUNTERS.get(row["role"], ())
            if not row["alive"] or not row["ready"] or not names:
                continue  # it has no figures, or old ones, which count when it has new ones
            key, process = (row["role"], row["index"]), (row["pid"], row["started_ms"])
            counts = {name: _number(row.get(name, 0)) for name in names}
            known, before = self._counted.get(key, (None, {}))
            if known != process:  # started since, or there before this controller was
                before = {} if row["started_ms"] >= self._at_wall_ms else counts
            self._counted[key] = (process, counts)
            for name, count in counts.items():
                added[name] += max(count - before.get(name, 0), 0)
        return added


def memory_of_servers(stores: Sequence[Mapping[str, Any]], servers: Mapping[int, str]) -> int:
    """Bytes of all servers, each counted once, however many stores it has.

    Args:
        stores: the state of each store; `used_memory_bytes` is that of its whole server.
        servers: the server of each store, by the store's index.
    """
    used = {servers[index]: int(store["used_memory_bytes"]) for index, store in enumerate(stores)}
    return sum(used.values())


def _number(value: Any) -> int:
    return sum(value.values()) if isinstance(value, Mapping) else int(value)
