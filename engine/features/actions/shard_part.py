"""Actions on a shard: fired timers append them to the streams of their targets."""

from __future__ import annotations

from functools import partial

from engine.features.actions.store import append_actions
from engine.store.shard_feature import ShardFeature, ShardPorts


def on_shard(ports: ShardPorts) -> ShardFeature:
    """The feature on a shard."""
    return ShardFeature(store_actions=partial(append_actions, ports.first, ports.config))
