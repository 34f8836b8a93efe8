"""The controller's view of its actors: whether each is healthy, and what their counters add up to.

A `HealthWatch` per actor is fed with the calls of its `stats()`, their results and their failures; `verdict` returns whether to leave the
actor alone or to replace it. The timeout runs while a call is unanswered, not since the last answer: the pause between two calls is the
controller's. It begins again (`excuse`) when the controller may have been cut off itself. Ray restarts a process that has died; the verdict
is for one that runs and does not answer. An actor that is replaced, or that Ray is starting again (`restarting`), gets `START_GRACE_FACTOR`
timeouts before the next verdict, so that a slow start is not killed over and over.

`totals` adds up the counters of all rows; a `LatencyWindow` turns cumulative histograms into quantiles of the recent past.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

HealthVerdict = Literal["leave", "replace"]
Histogram = Sequence[Sequence[float]]
"""[[upper bound in ms, count], ...] in growing order; the last bound is -1: everything above the one before."""

START_GRACE_FACTOR: Final = 6
"""Timeouts that the next process of an actor has for its start: a shard replays its journal in it."""


class HealthWatch:
    """Health of one actor.

    Args:
        role, index: which actor.
        timeout_ms: how long a call of an actor that has answered before may stay unanswered; then the actor is replaced.
        now_ms: monotonic milliseconds, as all times here.
    """

    def __init__(self, role: str, index: int, timeout_ms: int, now_ms: float) -> None:
        self.role = role
        self.index = index
        self.restarts = 0
        self.stats: Mapping[str, Any] = {}
        self.cpu_pct = 0.0
        self.queued_pct = 0.0
        self._timeout_ms = timeout_ms
        self._answered_ms = now_ms
        self._asked_ms: float | None = None  # the first call since it answered, or since it was replaced
        self._grace = 1
        self._failed = False

    def asked(self, now_ms: float) -> None:
        """`stats()` is called."""
        if self._asked_ms is None:
            self._asked_ms = now_ms

    def answered(self, stats: Mapping[str, Any], now_ms: float) -> None:
        """`stats()` returned. Another process than at the last answer counts as a restart."""
        before = self.stats
        if before and before["pid"] == stats["pid"] and before["started_ms"] == stats["started_ms"]:
            elapsed_s = (now_ms - self._answered_ms) / 1000
            if elapsed_s > 0:
                self.cpu_pct = round(100 * (stats["cpu_s"] - before["cpu_s"]) / elapsed_s, 1)
                self.queued_pct = round(100 * (stats["queued_s"] - before["queued_s"]) / elapsed_s, 1)
        elif before:
            self.restarts += 1
            self.cpu_pct = self.queued_pct = 0.0
        self.stats = stats
        self._answered_ms = now_ms
        self._asked_ms = None
        self._grace = 1
        self._failed = False

    def answered_since(self, since_ms: float) -> bool:
        """Whether a call has returned since then."""
        return bool(self.stats) and self._answered_ms > since_ms

    def failed(self) -> None:
        """`stats()` raised or did not return in time."""
        self._failed = True

    def restarting(self, now_ms: float) -> None:
        """Its process has died, and Ray starts the next one; or it was there before this watch, and its process may hang.

        No effect until it has answered: one that never does is replaced.
        """
        if self._grace == 1:
            self._asked_ms = now_ms
            self._grace = START_GRACE_FACTOR

    def excuse(self, now_ms: float) -> None:
        """The asker may have been cut off itself: the call that is unanswered counts from now."""
        if self._asked_ms is not None:
            self._asked_ms = now_ms

    def verdict(self, now_ms: float) -> HealthVerdict:
        """`replace`, once, when a call has been unanswered for too long; then the timeout is that of a start."""
        is_new = not self.stats and self._grace == 1  # it may wait for a machine
        if is_new or self._asked_ms is None or now_ms - self._asked_ms <= self._timeout_ms * self._grace:
            return "leave"
        self._asked_ms = now_ms
        self._grace = START_GRACE_FACTOR
        return "replace"

    def row(self) -> dict[str, Any]:
        """The actor's row of the status: its last `stats()`, and `alive`, `ready`, `restarts`, `cpu_pct` (of one core) and `queued_pct` (of
        the time, in which its thread was ready to run and had no core)."""
        base: dict[str, Any] = {"role": self.role, "index": self.index, "ready": False, "pid": None, "node": None, "rss_bytes": 0}
        alive = bool(self.stats) and not self._failed
        ready = alive and bool(self.stats.get("ready"))
        shares = {"cpu_pct": self.cpu_pct, "queued_pct": self.queued_pct} if alive else {"cpu_pct": 0.0, "queued_pct": 0.0}
        return {**base, **self.stats, "alive": alive, "ready": ready, "restarts": self.restarts, **shares}


def merge(histograms: Iterable[Histogram]) -> list[list[float]]:
    """Histograms added up, by their bounds; empty when there are none. Two versions of a process may have other bounds."""
    total: dict[float, float] = {}
    for histogram in histograms:
        for bound, count in histogram:
            total[bound] = total.get(bound, 0) + count
    return [[bound, total[bound]] for bound in sorted(total, key=lambda bound: (bound < 0, bound))]


def subtract(newer: Histogram, older: Histogram) -> list[list[float]]:
    """The counts added since `older`; one that fell (its process was restarted) counts from zero."""
    before: dict[float, float] = {bound: count for bound, count in older}  # noqa: C416 - a row is a list, which `dict` is not typed to take
    return [[bound, count - before.get(bound, 0) if count >= before.get(bound, 0) else count] for bound, count in newer]


def quantile_ms(histogram: Histogram, fraction: float) -> float | None:
    """The value below which `fraction` of the observations lie, interpolated within its bucket; None without observations.

    In the last bucket, which has no upper bound, it is the bound below.
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
    """Quantiles of the recent past from cumulative histograms.

    Args:
        window_ms: length of that past.
        prefix: of the quantiles' names.
    """

    def __init__(self, window_ms: float, prefix: str = "") -> None:
        self._window_ms = window_ms
        self._prefix = prefix
        self._samples: deque[tuple[float, list[list[float]]]] = deque()

    def add(self, histogram: list[list[float]], now_ms: float) -> None:
        self._samples.append((now_ms, histogram))
        while len(self._samples) > 2 and self._samples[1][0] <= now_ms - self._window_ms:
            self._samples.popleft()

    def quantiles(self) -> dict[str, float | None]:
        """`p50_ms`, `p95_ms` and `p99_ms` over the window; over everything so far when the window has no observations."""
        chosen: Histogram = []
        if self._samples:
            newest = self._samples[-1][1]
            recent = subtract(newest, self._samples[0][1])
            chosen = recent if any(count for _, count in recent) else newest
        return {f"{self._prefix}p{percent}_ms": quantile_ms(chosen, percent / 100) for percent in (50, 95, 99)}


def totals(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Sums of the shards' counters; `quarantined` includes the schedulers'."""
    rows = list(rows)
    shards = [row for row in rows if row["role"] == "shard"]
    names = ("connections", "users", "pending", "published", "delivered", "acknowledged", "retried", "dead_lettered", "expired")
    sums = {name: sum(int(row.get(name, 0)) for row in shards) for name in names}
    return {**sums, "quarantined": sum(int(row.get("quarantined", 0)) for row in rows)}
