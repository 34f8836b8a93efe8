"""The metrics of counter signals."""

from __future__ import annotations

from typing import Final

from engine.api.exposition.catalogue import FeatureMetrics, counter

METRICS: Final = FeatureMetrics(
    "Edges",
    "edge",
    (
        counter("signals", "engine_edge_signals", "Signals counted.", "edge"),
        counter("signals_dropped", "engine_edge_signals_dropped", "Signals for whose names there was no room.", "edge"),
    ),
)
