"""The load of the last hour at the controller, which alone has the figures of all actors."""

from __future__ import annotations

import logging

from engine.errors import StorageUnavailable
from engine.features.inspection.core import POINT_MS, POINTS_MAX, LoadWatch, memory_of_servers
from engine.features.inspection.load_history import LoadHistory
from engine.store.controller_feature import ControllerFeature, ControllerPorts

log = logging.getLogger(__name__)


def on_controller(ports: ControllerPorts) -> ControllerFeature:
    """The feature at the controller."""
    load = LoadWatch(POINT_MS)
    history = LoadHistory(ports.stores[0], POINTS_MAX)

    async def record() -> None:
        """Add a point when it is time for one. What cannot be stored is lost."""
        if not load.due(ports.now_ms()):
            return
        rows, redis = ports.rows(), ports.redis()
        redis_bytes = memory_of_servers(redis.get("stores", (redis,)), ports.servers())
        everyone = [row for of_role in rows.values() for row in of_role]
        point = load.observe(everyone, ports.totals(rows), redis_bytes, ports.now_ms(), ports.wall_ms())
        try:
            if point is not None:
                await history.add(point)
        except StorageUnavailable as error:
            log.info("%s", error)

    return ControllerFeature(record)
