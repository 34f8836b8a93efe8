"""Plans for moving slots: what they reach, and that they move no more than that takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from engine.core.controller.slot_moves import TOLERANCE, Move, away_moves, even_moves, load_moves, next_sets, slots_in
from engine.core.model.routing import NOBODY, SLOTS, SlotMap, spread

MAPS = st.integers(1, 12).flatmap(
    lambda shards: st.builds(
        lambda owners, more: SlotMap(1, tuple(owners * (SLOTS // len(owners) + 1))[:SLOTS], shards + more),
        st.lists(st.integers(0, shards - 1), min_size=1, max_size=97),
        st.integers(0, 3),
    )
)
LOADS = st.dictionaries(st.integers(0, SLOTS - 1), st.floats(0, 10_000), max_size=200)


def moved(slot_map: SlotMap, moves: Iterable[Move]) -> SlotMap:
    """The map after these moves, each of which must take from its source."""
    for move in moves:
        assert all(slot_map.owners[slot] == move.source for slot in move.slots)
        slot_map = slot_map.with_owner(move.slots, move.target)
    return slot_map


def counts(slot_map: SlotMap) -> Counter[int]:
    return Counter(slot_map.owners)


@given(MAPS, st.data())
def test_afterwards_the_numbers_of_slots_differ_by_one_at_most(slot_map: SlotMap, data: st.DataObject) -> None:
    shards = data.draw(st.integers(1, slot_map.shards))
    after = counts(moved(slot_map, even_moves(slot_map, shards)))
    assert set(after) == set(range(shards))
    assert max(after.values()) - min(after.values()) <= 1


@given(st.integers(1, SLOTS - 1))
def test_growing_by_one_moves_its_share_and_all_of_it_to_the_new_shard(shards: int) -> None:
    slot_map = SlotMap(1, spread(shards).owners, shards + 1)
    moves = even_moves(slot_map, shards + 1)
    assert {move.target for move in moves} == {shards}
    assert slots_in(moves) == SLOTS // (shards + 1)


@given(st.integers(2, 40), st.data())
def test_shrinking_moves_only_what_the_removed_shards_have(shards: int, data: st.DataObject) -> None:
    slot_map = spread(shards)
    left = data.draw(st.integers(1, shards - 1))
    moves = even_moves(slot_map, left)
    assert all(move.source >= left > move.target for move in moves)
    assert slots_in(moves) == sum(owner >= left for owner in slot_map.owners)


@given(MAPS, st.data())
def test_no_plan_of_fewer_moves_is_even(slot_map: SlotMap, data: st.DataObject) -> None:
    shards = data.draw(st.integers(1, slot_map.shards))
    before = counts(slot_map)
    share, more = divmod(SLOTS, shards)
    held = sorted((before[shard] for shard in range(shards)), reverse=True)
    too_many = sum(max(count - share - (rank < more), 0) for rank, count in enumerate(held))
    of_removed = sum(count for shard, count in before.items() if shard >= shards)
    assert slots_in(even_moves(slot_map, shards)) == too_many + of_removed


@given(MAPS, st.integers(1, 64), st.data())
def test_a_step_leaves_the_rest_of_its_plan(slot_map: SlotMap, slots_max: int, data: st.DataObject) -> None:
    """So a controller that starts again in the middle goes on, and moves nothing twice."""
    shards = data.draw(st.integers(1, slot_map.shards))
    moves = even_moves(slot_map, shards)
    step = next_sets(moves, slots_max)
    assert len({move.source for move in step}) == len(step)
    assert all(0 < len(move.slots) <= slots_max for move in step)
    assert bool(step) == bool(moves)
    done = data.draw(st.lists(st.sampled_from(step), unique=True)) if step else []  # any of them may have failed
    assert slots_in(even_moves(moved(slot_map, done), shards)) == slots_in(moves) - slots_in(done)


def test_slots_that_no_shard_has_stay() -> None:
    slot_map = SlotMap(1, (0, 1, -1, 99) * (SLOTS // 4), 3)
    after = moved(slot_map, even_moves(slot_map, 3))
    assert [after.owners[slot] for slot in range(2, SLOTS, 4)] == [-1] * (SLOTS // 4)
    assert [after.owners[slot] for slot in range(3, SLOTS, 4)] == [99] * (SLOTS // 4)


def load_of(slot_map: SlotMap, loads: dict[int, float]) -> list[float]:
    sums = [0.0] * slot_map.shards
    for slot, owner in enumerate(slot_map.owners):
        sums[owner] += loads.get(slot, 0.0)
    return sums


@given(MAPS, LOADS, st.integers(1, 200))
def test_by_load_no_slot_moves_twice_and_no_more_than_allowed(slot_map: SlotMap, loads: dict[int, float], slots_max: int) -> None:
    moves = load_moves(slot_map, loads, slots_max)
    assert slots_in(moves) <= slots_max
    moved(slot_map, moves)


@given(MAPS, LOADS)
def test_by_load_the_shards_are_level_or_no_single_slot_would_help(slot_map: SlotMap, loads: dict[int, float]) -> None:
    idle = 0.1 * sum(loads.values()) / SLOTS or 1.0
    weights = {slot: loads.get(slot, 0.0) + idle for slot in range(SLOTS)}
    before, after = slot_map, moved(slot_map, load_moves(slot_map, loads, 10 * SLOTS))
    sums = load_of(after, weights)
    highest, lowest, mean = max(sums), min(sums), sum(sums) / len(sums)
    assert highest <= max(load_of(before, weights)) * (1 + 1e-9)
    if highest > mean * (1 + TOLERANCE) * (1 + 1e-9):
        busiest = sums.index(highest)
        gap = highest - lowest
        assert all(weight >= gap * (1 - 1e-6) for slot, weight in weights.items() if after.owners[slot] == busiest)


def test_a_hot_slot_is_alone_with_idle_ones_afterwards() -> None:
    slot_map = spread(2)
    loads = {0: 1000.0, 2: 400.0, 4: 400.0, 1: 100.0}
    after = moved(slot_map, load_moves(slot_map, loads, 50))
    assert sorted(load_of(after, loads)) == [900.0, 1000.0]


def test_shards_without_load_are_levelled_by_their_numbers_of_slots() -> None:
    slot_map = SlotMap(1, (0,) * SLOTS, 2)
    assert slots_in(load_moves(slot_map, {}, SLOTS)) in range(SLOTS * 4 // 10, SLOTS // 2 + 1)


@given(st.sampled_from((2, 4)), st.integers(0, 9), st.integers(0, 7), LOADS, st.data())
def test_slots_stay_in_their_store(stores: int, more: int, added: int, loads: dict[int, float], data: st.DataObject) -> None:
    store, before = data.draw(st.integers(0, stores - 1)), stores + more
    slot_map = msgspec.structs.replace(spread(before, 1, 1, store, stores), shards=before + added)
    grown = moved(slot_map, even_moves(slot_map, slot_map.shards))
    emptied = moved(grown, away_moves(grown, range(stores, slot_map.shards), range(stores)))
    shrunk = moved(grown, even_moves(grown, stores))
    for after in (grown, emptied, shrunk, moved(grown, load_moves(grown, loads, 50))):
        for slot, owner in enumerate(after.owners):
            assert owner % stores == store if slot % stores == store else owner == NOBODY
    local = [counts(grown)[shard] for shard in grown.local(grown.shards)]
    assert max(local) - min(local) <= 1
    for after in (emptied, shrunk):
        assert after.slots_of(store) == list(range(store, SLOTS, stores))
