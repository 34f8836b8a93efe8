"""The features of the controller. `engine.routes` lists those of an edge, `engine.actors.shard_features` those of a shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from engine.features.autoscaling import controller_part as autoscaling
from engine.features.inspection import controller_part as inspection
from engine.features.snapshots import controller_part as snapshots
from engine.store.controller_feature import ControllerFeature, ControllerPorts

FEATURES: Final[Sequence[Callable[[ControllerPorts], ControllerFeature]]] = (
    inspection.on_controller,
    autoscaling.on_controller,
    snapshots.on_controller,
)
"""Without a feature its members of the status are missing."""
