"""Which shard or scheduler a record belongs to: by the slot of its user, or by the partition of its timer.

A route is one number: shard i is route i, scheduler j is route ~j (that is -1 - j).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from engine.config import Config
from engine.core.model.routing import RoutingTable, partition_of, partition_of_timer
from engine.core.wire import records as wire
from engine.gateway.ports import EdgeContext, PeerLinks
from engine.publish.priority_lanes import PriorityLanes


class RecordRouter:
    """Routes the records of one edge.

    Args:
        slots: who owns what; `Gateway.set_slots` replaces it.
        context: the edge's clock.
    """

    def __init__(self, config: Config, slots: RoutingTable, context: EdgeContext, links: PeerLinks) -> None:
        self.slots = slots
        self._config = config
        self._clock = context.clock
        self._links = links

    def routes_of(self, records: Iterable[Any]) -> list[int]:
        """The route of each record; it has a `key`, a `timer` or a scheduled id."""
        owner = self.slots.owner
        requests = wire.TIMER_REQUESTS
        return [self._route_of_timer_request(record) if type(record) in requests else owner(record.key) for record in records]

    def _route_of_timer_request(self, record: Any) -> int:
        kind = type(record)
        if kind is wire.ListTimers or kind is wire.CancelAll:
            partition = partition_of(record.key)
        else:
            sid = record.timer.sid if kind is wire.Schedule else record.sid
            partition = partition_of_timer(sid) or 0  # `ShardClient` has checked the id
        return ~self.slots.scheduler(partition)

    def lanes(self, route: int) -> PriorityLanes:
        """New lanes in front of a route."""
        config, links = self._config, self._links
        return PriorityLanes(
            config.publish_window_items,
            config.publish_window_bytes,
            config.publish_high_ms,
            config.publish_rate_initial_per_s / 1000,
            config.publish_delay_target_ms,
            partial(links.ask_shard, route) if route >= 0 else partial(links.ask_scheduler, ~route),
            self._clock,
        )
