"""Questions of edges about what a user has missed."""

from __future__ import annotations

from engine.core.wire.records import ReadBacklog
from engine.features.digest.core.backlog_reads import read_backlog
from engine.store.shard_feature import ShardFeature, ShardPorts


def on_shard(_ports: ShardPorts) -> ShardFeature:
    """The feature on a shard."""
    return ShardFeature(handlers={ReadBacklog: read_backlog})
