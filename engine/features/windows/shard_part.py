"""Windows on a shard, with the contact policy that they need."""

from __future__ import annotations

from functools import partial

from engine.features.policy.time_zones import zone_here
from engine.features.windows.core.aggregation_window import KINDS
from engine.features.windows.core.window_step import WindowJudge
from engine.store.shard_feature import ShardFeature, ShardPorts


def on_shard(ports: ShardPorts) -> ShardFeature:
    """The feature on a shard."""
    return ShardFeature(judge=partial(WindowJudge, ports.config, zone_here), judge_kinds=KINDS)
