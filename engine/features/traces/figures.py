"""The metrics of traces."""

from __future__ import annotations

from typing import Final

from engine.api.exposition.catalogue import ANY_ACTOR, FeatureMetrics, counter

METRICS: Final = FeatureMetrics(
    "Every actor",
    "",
    (
        counter(
            "spans_exported", "engine_spans_exported", "Spans that the collector of trace_url has taken; only with traces.", *ANY_ACTOR
        ),
        counter("spans_dropped", "engine_spans_dropped", "Spans that it did not take in time.", *ANY_ACTOR),
    ),
)
