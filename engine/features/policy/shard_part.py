"""Questions of edges about what would become, or became, of a message."""

from __future__ import annotations

from engine.core.wire.records import Explain, Trace
from engine.features.policy.core.explain import explain, trace
from engine.store.shard_feature import ShardFeature, ShardPorts


def on_shard(_ports: ShardPorts) -> ShardFeature:
    """The feature on a shard."""
    return ShardFeature(readers={Explain: explain, Trace: trace})
