"""Which shard or scheduler gets a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from engine.config import Config
from engine.core.model.routing import RoutingTable, partition_of, scheduler_of, slot_of, spread, timer_id
from engine.core.wire import records as wire
from engine.gateway.ports import EdgeContext
from engine.gateway.record_router import RecordRouter

CONFIG = Config(shards=4, schedulers=3)
KEYS = [f"t:u{n}" for n in range(40)]


class Links:
    def __init__(self) -> None:
        self.sent: list[tuple[str, int, Any]] = []

    def send_shard(self, index: int, record: Any, eager: bool) -> None:
        raise AssertionError("requests are of no connection")

    def ask_shard(self, index: int, records: Sequence[Any]) -> None:
        self.sent.extend(("shard", index, record) for record in records)

    def ask_scheduler(self, index: int, records: Sequence[Any]) -> None:
        self.sent.extend(("scheduler", index, record) for record in records)

    def need_slots(self, server: int, version: int) -> None: ...


def router(links: Links) -> RecordRouter:
    return RecordRouter(CONFIG, RoutingTable([spread(4, schedulers=3)]), EdgeContext("e0", lambda: 0, lambda: 0, str, str), links)


@pytest.mark.parametrize("key", KEYS)
def test_what_concerns_a_user_goes_to_the_owner_of_the_slot_by_the_newest_map(key: str) -> None:
    routes = router(Links())
    record = wire.Probe(1, key, "c", 0)
    assert routes.routes_of([record]) == [spread(4).owners[slot_of(key)]]
    routes.slots = RoutingTable([spread(1, version=2)])
    assert routes.routes_of([record]) == [0]


@pytest.mark.parametrize("key", KEYS)
def test_what_concerns_timers_goes_to_the_scheduler_of_the_partition_also_by_the_id_alone(key: str) -> None:
    routes = router(Links())
    sid = timer_id(key, "01a2016c-2647-7ab9-a075-06aafb696dcf")
    records = [wire.CancelAll(1, key), wire.ListTimers(2, key, 10), wire.Cancel(3, "t", sid), wire.Inspect(4, "t", sid)]
    assert routes.routes_of(records) == [~scheduler_of(partition_of(key), 3)] * len(records)


def test_the_lanes_of_a_route_send_on_it() -> None:
    links = Links()
    routes = router(links)
    record = wire.Probe(1, "t:u", "c", 0)
    routes.lanes(2).send([(1, record, 0, 10)], "t")
    routes.lanes(~1).send([(1, record, 0, 10)], "t")
    assert links.sent == [("shard", 2, record), ("scheduler", 1, record)]
