"""The contact policy on a shard, and requests of edges about profiles and about what would become, or became, of a message."""

from __future__ import annotations

from engine.core.wire.records import ChangeProfile, Explain, GetProfile, SetProfile, Trace
from engine.features.policy.core.changed_profiles import change_profile, get_profile
from engine.features.policy.core.explain import explain, trace
from engine.features.policy.core.policy_step import PolicyJudge
from engine.features.policy.time_zones import zone_here
from engine.store.shard_feature import ShardFeature, ShardPorts


def on_shard(ports: ShardPorts) -> ShardFeature:
    """The feature on a shard."""
    return ShardFeature(
        judge=lambda _mailboxes, _memory: PolicyJudge(ports.config, zone_here),
        handlers={Explain: explain, Trace: trace, GetProfile: get_profile, SetProfile: change_profile, ChangeProfile: change_profile},
    )
