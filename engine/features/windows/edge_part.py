"""The metrics of windows on an edge, which exports them for all shards."""

from __future__ import annotations

from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.features.windows.figures import METRICS


def on_edge(_ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    return EdgeFeature("windows", metrics=METRICS)
