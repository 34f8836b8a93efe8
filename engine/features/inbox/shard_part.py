"""Requests of edges about a user's inbox."""

from __future__ import annotations

from engine.core.wire.records import MarkInbox, ReadInbox
from engine.features.inbox.core.inbox_requests import mark, read
from engine.store.shard_feature import ShardFeature, ShardPorts


def on_shard(_ports: ShardPorts) -> ShardFeature:
    """The feature on a shard."""
    return ShardFeature(handlers={ReadInbox: read, MarkInbox: mark})
