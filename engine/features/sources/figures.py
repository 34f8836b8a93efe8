"""Sources in figures: metrics, and the line of each source in `engine status`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engine.api.actor_feature import StatusLine
from engine.api.exposition.catalogue import FeatureMetrics, counter, gauge

METRICS: Final = FeatureMetrics(
    "Sources",
    "ingester",
    (
        counter("accepted", "engine_source_rows", "Rows of a source that the engine accepted.", "source"),
        counter("dead", "engine_source_refused_rows", "Rows of a source that were set aside as dead.", "source"),
        gauge("waiting", "engine_source_waiting_rows", "Rows that wait in a source.", "source"),
        gauge("lag_ms", "engine_source_lag_seconds", "Age of the oldest of them.", "source", factor=1e-3),
        gauge("dead_rows", "engine_source_dead_rows", "Dead rows that nobody has redriven.", "source"),
    ),
    named_by="source",
)


def line(row: Mapping[str, Any]) -> StatusLine | None:
    """What waits in the source of an ingester; None while the ingester starts."""
    if not row.get("source"):
        return None
    state = f"{row['state']}, ".removeprefix(f"source {row['source']}: ") if row["state"] != "ok" else ""
    waiting = f"{row['waiting']} rows wait, the oldest {row['lag_ms'] / 1000:.1f} s, {row['dead_rows']} dead"
    return StatusLine(f"source {row['source']}", state + waiting)
