"""Slots, shards, timer partitions, and the keys that name users and audiences."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import STORES_ALLOWED
from engine.core.model import routing
from tests.support.key_strategies import AUDIENCES, MAILBOXES, TENANTS, TOPICS, USERS


@pytest.mark.parametrize(("key", "slot"), [("123456789", 0xCBF43926 % 32), ("default:ann", 15), ("t:é:x", 3)])
def test_the_slot_of_a_key_never_changes_because_stored_keys_hold_it(key: str, slot: int) -> None:
    assert routing.slot_of(key) == slot


@given(TENANTS, USERS)
def test_a_mailbox_key_splits_into_its_tenant_and_user(tenant: str, user: str) -> None:
    assert routing.split_key(routing.mailbox_key(tenant, user)) == (tenant, user)


@given(TENANTS, TOPICS)
def test_an_audience_key_gives_its_tenant_and_topic_back(tenant: str, topic: str) -> None:
    key = routing.audience_key(tenant, topic)
    assert routing.split_key(key)[0] == tenant
    assert routing.topic_of(key) == topic


@given(MAILBOXES)
def test_no_mailbox_key_is_taken_for_an_audience(key: str) -> None:
    assert routing.topic_of(key) is None


@given(MAILBOXES | AUDIENCES, st.text(min_size=1))
def test_a_scheduled_id_routes_to_the_partition_of_its_mailbox(key: str, unique: str) -> None:
    assert routing.partition_of_timer(routing.timer_id(key, unique)) == routing.partition_of(key) in range(routing.TIMER_PARTITIONS)


@pytest.mark.parametrize("sid", ["", "-", "3", "3-", "-x", "16-x", "-1-x", "03-x", " 3-x", "+3-x", "٣-x", "x-3"])
def test_an_id_that_no_timer_can_have_routes_nowhere(sid: str) -> None:
    assert routing.partition_of_timer(sid) is None


@given(st.integers(1, 200), MAILBOXES)
def test_every_slot_has_one_owner_and_shards_differ_by_one_slot_at_most(shards: int, key: str) -> None:
    slots = routing.spread(shards)
    shares = [slots.slots_of(shard) for shard in range(shards)]
    assert sorted(slot for share in shares for slot in share) == list(range(routing.SLOTS))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert routing.slot_of(key) in slots.slots_of(slots.owner(key))


def test_a_map_over_no_shards_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one shard"):
        routing.spread(0)


@given(st.integers(1, 40))
def test_every_timer_partition_belongs_to_exactly_one_scheduler(schedulers: int) -> None:
    owners = Counter(partition for scheduler in range(schedulers) for partition in routing.partitions_of(scheduler, schedulers))
    assert owners == Counter(range(routing.TIMER_PARTITIONS))
    for partition in range(routing.TIMER_PARTITIONS):
        assert partition in routing.partitions_of(routing.scheduler_of(partition, schedulers), schedulers)


@pytest.mark.parametrize(
    ("cores", "room", "shards"),
    [(0, 9, 1), (1, 9, 1), (7.9, 9, 1), (8, 9, 2), (16, 3, 3), (64, 1024, routing.SHARDS_BY_CORES_MAX), (16, 0, 1)],
)
def test_one_shard_for_so_many_cores_as_far_as_there_is_room(cores: float, room: float, shards: int) -> None:
    assert routing.shards_for(cores, room) == shards


@pytest.mark.parametrize("stores", STORES_ALLOWED)
def test_shards_schedulers_slots_and_timers_of_a_user_are_in_one_store(stores: int) -> None:
    for more in range(4):
        count = min(stores + more, routing.TIMER_PARTITIONS)
        table = routing.RoutingTable([routing.spread(count, 1, count, store, stores) for store in range(stores)])
        for slot, owner in enumerate(table.owners):
            home = routing.store_of(slot, stores)
            assert home == routing.store_of(owner, stores) == routing.store_of(routing.partition_of_slot(slot), stores)
        for partition in range(routing.TIMER_PARTITIONS):
            scheduler = table.scheduler(partition)
            assert routing.store_of(partition, stores) == routing.store_of(scheduler, stores)
            assert [partition in routing.partitions_of(index, count, stores) for index in range(count)].index(True) == scheduler
        assert set(table.owners) == set(range(count))
        assert sum(len(routing.partitions_of(index, count, stores)) for index in range(count)) == routing.TIMER_PARTITIONS


def test_a_table_has_each_newest_map_and_links_to_all_it_names() -> None:
    table = routing.RoutingTable([routing.spread(2, 5, 2, store, 2) for store in range(2)])
    assert table.owners == routing.spread(2).owners
    grown = table.with_map(routing.spread(4, 6, 4, 1, 2))
    assert (grown.shards, grown.schedulers) == (4, 4)
    assert [grown.version(index) for index in range(4)] == [5, 6, 5, 6]
    assert [grown.owners[slot] for slot in range(4)] == [0, 1, 0, 3]
    assert [grown.scheduler(partition) for partition in range(4)] == [0, 1, 0, 3]


def test_new_data_get_as_many_shards_for_each_store() -> None:
    with pytest.raises(ValueError, match="at least one shard"):
        routing.spread(1, store=1, stores=2)
    assert [routing.shards_for(cores, 100, 2) for cores in (1, 8, 12, 16, 1000)] == [2, 2, 2, 4, 16]
