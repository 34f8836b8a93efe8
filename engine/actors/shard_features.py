"""The features of a shard. `engine.routes` lists those of an edge, `engine.actors.feature_actors` those with an actor of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from engine.features.actions import shard_part as actions
from engine.features.dead_letters import shard_part as dead_letters
from engine.features.digest import shard_part as digest
from engine.features.inbox import shard_part as inbox
from engine.features.policy import shard_part as policy
from engine.features.traces import shard_part as traces
from engine.features.user_data import shard_part as user_data
from engine.features.windows import shard_part as windows
from engine.store.shard_feature import ShardFeature, ShardPorts

FEATURES: Final[Sequence[Callable[[ShardPorts], ShardFeature]]] = (
    traces.on_shard,
    policy.on_shard,
    windows.on_shard,
    actions.on_shard,
    digest.on_shard,
    dead_letters.on_shard,
    inbox.on_shard,
    user_data.on_shard,
)
"""Without a feature its records are refused or dropped (`engine.store.shard_feature`)."""
