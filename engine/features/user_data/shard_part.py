"""Questions of edges about a user."""

from __future__ import annotations

from engine.core.wire.records import ReadUser
from engine.features.user_data.core import user_overview
from engine.store.shard_feature import ShardFeature, ShardPorts


def on_shard(_ports: ShardPorts) -> ShardFeature:
    """The feature on a shard."""
    return ShardFeature(handlers={ReadUser: user_overview})
