"""The contact policy on a shard, and questions of edges about what would become, or became, of a message."""

from __future__ import annotations

from engine.api.time_zones import zone_here
from engine.core.wire.records import Explain, Trace
from engine.features.policy.core.explain import explain, trace
from engine.features.policy.core.policy_step import PolicyJudge
from engine.store.shard_feature import ShardFeature, ShardPorts


def on_shard(ports: ShardPorts) -> ShardFeature:
    """The feature on a shard."""
    return ShardFeature(judge=lambda _mailboxes, _memory: PolicyJudge(ports.config, zone_here), handlers={Explain: explain, Trace: trace})
