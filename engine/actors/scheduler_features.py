"""The features of a scheduler. `engine.routes` lists those of an edge, `engine.actors.shard_features` those of a shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from engine.features.traces import scheduler_part as traces
from engine.store.scheduler_feature import SchedulerFeature, SchedulerPorts

FEATURES: Final[Sequence[Callable[[SchedulerPorts], SchedulerFeature]]] = (traces.on_scheduler,)
"""Without a feature nobody is told what passes."""
