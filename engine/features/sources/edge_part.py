"""Sources on an edge: their metrics. The requests of ingesters are those of any publisher."""

from __future__ import annotations

from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.features.sources.figures import METRICS


def on_edge(_ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    return EdgeFeature("sources", metrics=METRICS)
