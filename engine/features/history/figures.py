"""The history in figures: metrics, and what `engine status` and `/readyz` tell of the archivist."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engine.api.actor_feature import StatusLine
from engine.api.exposition.catalogue import FeatureMetrics, counter, gauge

METRICS: Final = FeatureMetrics(
    "History",
    "archivist",
    (
        counter("archived", "engine_history_rows", "Rows written to the database of the history.", "archivist"),
        gauge("waiting", "engine_history_waiting_outcomes", "Outcomes in the stream that are not in the database yet.", "archivist"),
        gauge(
            "stream_bytes",
            "engine_history_stream_bytes",
            "What they take; at history_stream_bytes_max further ones are dropped.",
            "archivist",
        ),
        gauge("lag_ms", "engine_history_lag_seconds", "Age of the oldest of them.", "archivist", factor=1e-3),
        counter("dropped", "engine_history_dropped", "Outcomes that found no room in the stream or cannot be stored.", "archivist"),
        counter("swept", "engine_history_swept_rows", "Rows deleted because they were older than history_ttl_s.", "archivist"),
        gauge("database", "engine_history_up", "1 while the database of the history answers.", "archivist"),
    ),
)


def line(row: Mapping[str, Any]) -> StatusLine | None:
    """Why the archivist cannot write; None while it can."""
    database = row.get("database", "ok")
    return None if database == "ok" else StatusLine("history", f"{row['waiting']} outcomes wait: {database}", is_fault=True)


def is_degraded(status: Mapping[str, Any]) -> bool:
    """Whether the history lags behind: its archivist, or the database, is away."""
    return any(not row["ready"] or row["database"] != "ok" for row in status.get("archivists", ()))
