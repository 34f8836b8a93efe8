"""The events of Ray in figures: metrics, and the line of the watcher in `engine status`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engine.api.actor_feature import StatusLine
from engine.api.exposition.catalogue import FeatureMetrics, counter, gauge

METRICS: Final = FeatureMetrics(
    "Ray events",
    "watcher",
    (
        counter("told", "engine_ray_events_told", "Events of the Ray cluster that the rules have taken.", "watcher"),
        counter("refused", "engine_ray_events_refused", "Events of the Ray cluster that the rules refused.", "watcher"),
        gauge("running_jobs", "engine_ray_jobs", "Jobs of the Ray cluster whose end is to be told.", "watcher"),
        gauge(
            "waiting",
            "engine_ray_events_waiting",
            "1 while a part of the Ray cluster, storage or an edge does not answer the watcher.",
            "watcher",
        ),
    ),
)


def line(row: Mapping[str, Any]) -> StatusLine | None:
    """What does not answer the watcher; None while everything does."""
    state = row.get("state", "ok")
    return None if state == "ok" else StatusLine("ray events", state, is_fault=True)
