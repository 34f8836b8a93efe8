"""What the controller knows of its actors and what it does about it.

A `HealthWatch` per actor is fed with questions, answers and failures of its `stats()` calls; `verdict` says whether to leave it alone or to
replace it. What counts is how long it has left questions unanswered, not when it answered last: the pause between two questions is none
of its own. Ray itself restarts a process that has died; the verdict is for one that is there and does not answer. A replaced
actor gets a whole timeout again before the next verdict, so a slow start is not killed over and over faster than that.

`summary` folds everybody's last answer into the engine's status.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

Verdict = Literal["leave", "replace"]
Histogram = Sequence[Sequence[float]]
"""[[upper bound in ms, count], ...] in growing order; the last bound is -1: everything above the one before."""

START_GRACE_FACTOR: Final = 6
"""A replaced actor may take this many timeouts: a shard replays its journal in its start."""


class HealthWatch:
    """Health of one actor, from its answers.

    Args:
        role, index: which actor.
        timeout_ms: how long an actor that has answered before may leave questions unanswered; after it, it is replaced.
        now_ms: monotonic milliseconds, as all times here.
    """

    def __init__(self, role: str, index: int, timeout_ms: int, now_ms: float) -> None:
        self.role = role
        self.index = index
        self.restarts = 0
        self.stats: Mapping[str, Any] = {}
        self.cpu_pct = 0.0
        self._timeout_ms = timeout_ms
        self._answered_ms = now_ms
        self._asked_ms: float | None = None  # the first question since it answered, or since it was replaced
        self._grace = 1
        self._failed = False

    def asked(self, now_ms: float) -> None:
        """`stats()` is called."""
        if self._asked_ms is None:
            self._asked_ms = now_ms

    def answered(self, stats: Mapping[str, Any], now_ms: float) -> None:
        """`stats()` returned. Another process than last time means that it was restarted in between."""
        before = self.stats
        if before and before["pid"] == stats["pid"] and before["started_ms"] == stats["started_ms"]:
            elapsed_s = (now_ms - self._answered_ms) / 1000
            if elapsed_s > 0:
                self.cpu_pct = round(100 * (stats["cpu_s"] - before["cpu_s"]) / elapsed_s, 1)
        elif before:
            self.restarts += 1
            self.cpu_pct = 0.0
        self.stats = stats
        self._answered_ms = now_ms
        self._asked_ms = None
        self._grace = 1
        self._failed = False

    def failed(self) -> None:
        """`stats()` raised or did not return in time."""
        self._failed = True

    def verdict(self, now_ms: float) -> Verdict:
        """`replace` once when the silence has lasted too long; then the actor has a start's time to answer."""
        if not self.stats or self._asked_ms is None or now_ms - self._asked_ms <= self._timeout_ms * self._grace:
            return "leave"
        self._asked_ms = now_ms
        self._grace = START_GRACE_FACTOR
        return "replace"

    def row(self) -> dict[str, Any]:
        """One line of the status: the last answer and what is known beside it."""
        base: dict[str, Any] = {"role": self.role, "index": self.index, "ready": False, "pid": None, "node": None, "rss_bytes": 0}
        alive = bool(self.stats) and not self._failed
        ready = alive and bool(self.stats.get("ready"))
        return {**base, **self.stats, "alive": alive, "ready": ready, "cpu_pct": self.cpu_pct if alive else 0.0, "restarts": self.restarts}


def merge(histograms: Iterable[Histogram]) -> list[list[float]]:
    """Histograms with the same bounds, added up; empty when there are none."""
    total: list[list[float]] = []
    for histogram in histograms:
        if not total:
            total = [[bound, 0] for bound, _ in histogram]
        for mine, (_, count) in zip(total, histogram, strict=True):
            mine[1] += count
    return total


def subtract(newer: Histogram, older: Histogram) -> list[list[float]]:
    """What was added since `older`; a counter that fell (its process was restarted) counts from zero."""
    before: dict[float, float] = {bound: count for bound, count in older}  # noqa: C416 - a row is a list, which `dict` is not typed to take
    return [[bound, count - before.get(bound, 0) if count >= before.get(bound, 0) else count] for bound, count in newer]


def quantile_ms(histogram: Histogram, fraction: float) -> float | None:
    """The value below which `fraction` of the observations lie, interpolated within its bucket; None without observations.

    Above the last bound nothing is known: the answer is that bound.
    """
    total = sum(count for _, count in histogram)
    if not total:
        return None
    rank = fraction * total
    seen, lower = 0.0, 0.0
    for bound, count in histogram:
        if bound < 0:
            break
        if count and seen + count >= rank:
            return round(lower + (bound - lower) * (rank - seen) / count, 2)
        seen += count
        lower = bound
    return lower


class LatencyWindow:
    """Quantiles of the recent past out of counters that only grow.

    Args:
        window_ms: how far back the quantiles look.
    """

    def __init__(self, window_ms: float) -> None:
        self._window_ms = window_ms
        self._samples: deque[tuple[float, list[list[float]]]] = deque()

    def add(self, histogram: list[list[float]], now_ms: float) -> None:
        """The counters as they are now."""
        self._samples.append((now_ms, histogram))
        while len(self._samples) > 2 and self._samples[1][0] <= now_ms - self._window_ms:
            self._samples.popleft()

    def quantiles(self) -> dict[str, float | None]:
        """p50, p95 and p99 in ms over the window; of everything so far when nothing was delivered in it."""
        if not self._samples:
            return {"p50_ms": None, "p95_ms": None, "p99_ms": None}
        newest = self._samples[-1][1]
        recent = subtract(newest, self._samples[0][1])
        chosen = recent if any(count for _, count in recent) else newest
        return {f"p{percent}_ms": quantile_ms(chosen, percent / 100) for percent in (50, 95, 99)}


def totals(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Sums over the shards' rows: what an operator looks at first. `quarantined` are those of the schedulers too."""
    rows = list(rows)
    shards = [row for row in rows if row["role"] == "shard"]
    names = ("connections", "users", "pending", "published", "delivered", "acknowledged", "retried", "dead_lettered", "expired")
    sums = {name: sum(int(row.get(name, 0)) for row in shards) for name in names}
    return {**sums, "quarantined": sum(int(row.get("quarantined", 0)) for row in rows)}
