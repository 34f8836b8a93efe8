"""The rate of each slot, from a sample of the groups."""

from __future__ import annotations

from collections import Counter

import pytest

from engine.core.journal.journal_records import Handled, StoredMessage
from engine.core.model.constants import NORMAL
from engine.core.model.envelope import Envelope
from engine.core.model.routing import SLOTS, slot_of
from engine.core.shard.slot_loads import COUNTED_MAX, HALF_LIFE_MS, SlotLoads

START_MS = 1_800_000_000_000


def stored(user: str) -> StoredMessage:
    envelope = Envelope("id", b"", NORMAL, True, b"{}")
    return StoredMessage(f"default:{user}", 1, envelope, 0, 0, 0)


def run(loads: SlotLoads, seconds: int, rates: dict[str, int], start_ms: int = START_MS, groups_per_s: int = 20) -> int:
    """Commit at these rates per user; returns when it ended."""
    for tick in range(seconds * groups_per_s):
        now_ms = start_ms + tick * 1000 // groups_per_s
        loads.committed([stored(user) for user, rate in rates.items() for _ in range(rate // groups_per_s)], now_ms)
    return start_ms + seconds * 1000


def test_a_steady_rate_is_found() -> None:
    loads = SlotLoads()
    ended_ms = run(loads, 600, {"busy": 200, "calm": 20})
    found = loads.per_s(ended_ms)
    assert abs(found[slot_of("default:busy")] - 200) < 20
    assert abs(found[slot_of("default:calm")] - 20) < 2


def test_a_load_that_ended_is_halved_by_its_half_life_and_then_forgotten() -> None:
    loads = SlotLoads()
    ended_ms = run(loads, 300, {"busy": 200})
    slot = slot_of("default:busy")
    before = loads.per_s(ended_ms)[slot]
    assert abs(loads.per_s(ended_ms + HALF_LIFE_MS)[slot] - before / 2) < before / 100
    assert not loads.per_s(ended_ms + 60 * HALF_LIFE_MS)


def test_reading_it_often_changes_nothing() -> None:
    often, once = SlotLoads(), SlotLoads()
    for loads in (often, once):
        run(loads, 60, {"busy": 200})
    for ms in range(0, 60_000, 100):
        often.per_s(START_MS + 60_000 + ms)
    slot, end_ms = slot_of("default:busy"), START_MS + 120_000
    assert abs(often.per_s(end_ms)[slot] - once.per_s(end_ms)[slot]) < 1e-6


def test_only_messages_count() -> None:
    loads = SlotLoads()
    loads.committed([Handled("default:anyone", 1, [])], START_MS)
    loads.committed([], START_MS)
    assert not loads.per_s(START_MS)
    loads.committed([stored("anyone")], START_MS)
    assert set(loads.per_s(START_MS)) == {slot_of("default:anyone")}


@pytest.mark.parametrize("size", [1, COUNTED_MAX, COUNTED_MAX + 1, 100])
def test_every_place_in_a_group_counts_alike_however_large_it_is(size: int) -> None:
    loads, users = SlotLoads(), [f"user-{place}" for place in range(size)]
    group, groups = [stored(user) for user in users], 4000
    for _ in range(groups):
        loads.committed(group, START_MS)
    found = loads.per_s(START_MS)
    expected = Counter(slot_of(f"default:{user}") for user in users)
    one = sum(found.values()) / size
    assert all(abs(found[slot] - count * one) < 0.1 * count * one for slot, count in expected.items())


def test_slots_that_are_alike_are_told_apart_from_noise_after_some_seconds_of_little_load() -> None:
    loads, users = (
        SlotLoads(),
        [next(user for n in range(9999) if slot_of(f"default:{(user := f'user-{n}')}") == slot) for slot in range(SLOTS)],
    )
    for number in range(1500):  # 300 a second, each in a group of its own
        loads.committed([stored(users[number % len(users)])], START_MS)
    found = loads.per_s(START_MS)
    assert max(found.values()) / min(found.values()) < 2
