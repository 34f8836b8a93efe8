"""The engine's totals among Ray's own metrics (`ray.util.metrics`), for who looks at the cluster's dashboard or scrapes its nodes.

The controller, which has the figures of all processes, sets a handful of them every `PERIOD_MS`; no process that serves does anything for
it. Everything else is at `/metrics`. Where Ray collects no metrics, setting one does nothing.

Of counters a shard starts anew when its process does, Ray gets what was added since the last time, so they only grow.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ray.util import metrics

log = logging.getLogger(__name__)

PERIOD_MS: Final = 10_000
"""Ray's own metrics are collected as often."""

GAUGES: Final = {
    "connections": "Open connections.",
    "users": "Mailboxes in memory.",
    "pending": "Messages that wait to be acknowledged.",
}
COUNTERS: Final = {
    "published": "Messages accepted.",
    "delivered": "Messages sent, repeats included.",
    "acknowledged": "Messages acknowledged.",
    "retried": "Messages sent again.",
    "dead_lettered": "Messages that clients refused.",
    "expired": "Messages that expired.",
}
"""Figures of shards, by their name there; Ray shows them as `ray_engine_<name>`."""

_TAGS: Final = ("engine",)


class RayFigures:
    """Of one engine, in its controller.

    Args:
        engine: the engine's namespace, a tag of every figure.
    """

    def __init__(self, engine: str) -> None:
        self._engine = {"engine": engine}
        self._next_ms = 0.0
        self._gauges: dict[str, Any] = {}
        self._counters: dict[str, Any] = {}
        self._before: dict[tuple[str, int], Mapping[str, Any]] = {}  # rows by shard and start of its process

    def report(self, rows: Iterable[Mapping[str, Any]], now_ms: float) -> None:
        """Set the figures from the rows of all actors, if it is time."""
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + PERIOD_MS
        shards = {(str(row["index"]), int(row["started_ms"])): row for row in rows if row.get("role") == "shard" and "started_ms" in row}
        try:
            if not self._gauges:
                self._gauges = {name: metrics.Gauge(f"engine_{name}", text, _TAGS) for name, text in GAUGES.items()}
                self._counters = {name: metrics.Counter(f"engine_{name}", text, _TAGS) for name, text in COUNTERS.items()}
            for name, gauge in self._gauges.items():
                gauge.set(sum(row.get(name, 0) for row in shards.values()), self._engine)
            for name, counter in self._counters.items():
                added = sum(max(0, row.get(name, 0) - self._before.get(shard, {}).get(name, 0)) for shard, row in shards.items())
                if added:
                    counter.inc(added, self._engine)
        except Exception as error:  # of Ray's exporters; the engine serves on
            log.warning("Ray's metrics do not have the engine's figures: %r", error)
        self._before = shards
