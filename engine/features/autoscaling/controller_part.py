"""Autoscaling at the controller: looks at the load of each round, and wants what the policy decides."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from engine.errors import StorageUnavailable
from engine.features.autoscaling.core import ScalingDecision, ScalingPolicy
from engine.store.controller_feature import ControllerFeature, ControllerPorts

log = logging.getLogger(__name__)

_DECISIONS_MAX: Final = 20
"""That the status has."""


class Autoscaling:
    """The decisions of one controller."""

    def __init__(self, ports: ControllerPorts) -> None:
        self._ports = ports
        self._policy = ScalingPolicy(ports.config)
        self._decisions: deque[dict[str, Any]] = deque(maxlen=_DECISIONS_MAX)

    async def look(self) -> None:
        """Decide about the rows of the last round, and carry it out."""
        if self._policy.mode == "off":
            return
        ports = self._ports
        shards, schedulers, edges = (ports.serving(role) for role in ("shard", "scheduler", "edge"))
        for decision in self._policy.observe(shards, schedulers, edges, int(ports.now_ms()), ports.settled(), ports.waiting()):
            shown = {**msgspec.structs.asdict(decision), "at_ms": ports.wall_ms()}
            log.info("autoscaler: %s", shown)
            self._decisions.appendleft(shown)
            if self._policy.mode == "on":
                await self._carry_out(decision)

    async def _carry_out(self, decision: ScalingDecision) -> None:
        try:
            if decision.action == "scale":
                await self._ports.want("autoscaler", **{decision.role: decision.wanted})
            elif decision.action == "rebalance":
                await self._ports.want("autoscaler", sharing="load")
        except StorageUnavailable as error:
            log.warning("the decision is not carried out: %s", error)

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        """The mode, and the last decisions."""
        return {"scaling": {"autoscale": self._policy.mode, "decisions": list(self._decisions)}}


def on_controller(ports: ControllerPorts) -> ControllerFeature:
    """The feature at the controller."""
    autoscaling = Autoscaling(ports)
    return ControllerFeature(autoscaling.look, status=autoscaling.status)
