"""The metrics of aggregation windows."""

from __future__ import annotations

from typing import Final

from engine.api.exposition.catalogue import FeatureMetrics, counter, gauge

METRICS: Final = FeatureMetrics(
    "Shards",
    "shard",
    (
        gauge("windows", "engine_windows_open", "Aggregation windows that are open, of users in memory.", "shard"),
        counter("merged", "engine_merged", "Messages that count in an aggregation window instead of being delivered.", "shard"),
        counter("windows_closed", "engine_windows_closed", "Aggregation windows that were over.", "shard"),
    ),
)
