"""Snapshots at the controller: one each `snapshot_interval_s`, of the engine's own Redis."""

from __future__ import annotations

from engine.features.snapshots.snapshots import SnapshotSchedule
from engine.store.controller_feature import ControllerFeature, ControllerPorts


def on_controller(ports: ControllerPorts) -> ControllerFeature:
    """The feature at the controller."""
    if not ports.config.snapshot_interval_s:
        return ControllerFeature()
    schedule = SnapshotSchedule(ports.config, ports.stores[0])
    return ControllerFeature(run=schedule.follow, status=lambda: {"redis": {"snapshots": schedule.status()}})
