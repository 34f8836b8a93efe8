"""The metrics of actions, which each edge reports of those it carries out."""

from __future__ import annotations

from typing import Final

from engine.api.exposition.catalogue import BREAKER_STATES, FeatureMetrics, counter, gauge

METRICS: Final = FeatureMetrics(
    "Edges",
    "edge",
    (
        counter(
            "actions", "engine_edge_actions", "Actions of rules by target: done, given up as dead letters; and failed tries.",
            "edge", "target", "outcome",
        ),
        gauge("actions_held", "engine_edge_actions_held", "Actions that this edge carries out now, by target.", "edge", "target"),
        gauge(
            "action_breakers", "engine_edge_action_breaker_state",
            f"Circuit breaker of this edge for a target of actions: {BREAKER_STATES}: it is not called.", "edge", "target",
        ),
    ),
)  # fmt: skip
