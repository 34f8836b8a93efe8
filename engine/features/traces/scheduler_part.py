"""Traces on a scheduler: timers until they are durable, and until their shards have dealt with them."""

from __future__ import annotations

from engine.features.traces.scheduler_spans import SchedulerSpans
from engine.features.traces.spans import spans_of
from engine.store.scheduler_feature import SchedulerFeature, SchedulerPorts


def on_scheduler(ports: SchedulerPorts) -> SchedulerFeature:
    """The feature on a scheduler. Raises ConfigError: the exporter is not installed."""
    spans = spans_of(ports.config, ports.name)
    return SchedulerFeature() if spans is None else SchedulerFeature(SchedulerSpans(spans), spans.counts, spans.flush)
