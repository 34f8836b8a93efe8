"""Traces on a shard: posts until they are durable, and timers until they took effect."""

from __future__ import annotations

from engine.features.traces.shard_spans import ShardSpans
from engine.features.traces.spans import spans_of
from engine.store.shard_feature import ShardFeature, ShardPorts


def on_shard(ports: ShardPorts) -> ShardFeature:
    """The feature on a shard. Raises ConfigError: the exporter is not installed."""
    spans = spans_of(ports.config, ports.name)
    return ShardFeature() if spans is None else ShardFeature(ShardSpans(spans), spans.counts, spans.flush)
