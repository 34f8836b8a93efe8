"""Counter signals: merged, written in batches, each once."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
from hypothesis import given, settings

from engine.features.signals.core import CounterMerge


def test_signals_merge_and_leave_when_they_are_due() -> None:
    tally = CounterMerge(names_max=10, flush_ms=100)
    assert tally.next_at() is None
    for _ in range(1000):
        assert tally.add("t", "views:1", 1, 50)
    assert tally.add("t", "views:2", 3, 60)
    assert tally.next_at() == 150
    assert tally.take(149) is None
    batch = tally.take(150)
    assert batch is not None
    assert (batch.number, batch.sums) == (1, {"t:views:1": 1000, "t:views:2": 3})


def test_a_batch_without_room_for_a_name_does_not_wait() -> None:
    tally = CounterMerge(names_max=4, flush_ms=100)
    assert tally.add("t", "a", 1, 0)
    assert tally.add("t", "b", 1, 0)
    assert tally.take(0) is None
    assert not tally.add("t", "c", 1, 0)
    assert tally.add("t", "a", 1, 0), "what it has still merges"
    batch = tally.take(0)
    assert batch is not None
    assert batch.sums == {"t:a": 2, "t:b": 1}


def test_whoever_comes_later_finds_room_whatever_the_others_do() -> None:
    tally = CounterMerge(names_max=120, flush_ms=100)
    had = {tenant: sum(tally.add(tenant, str(number), 1, 0) for number in range(1000)) for tenant in ("first", "second", "third")}
    assert had == {"first": 60, "second": 30, "third": 15}


def test_tenants_who_use_all_they_may_have_the_same_part() -> None:
    tally = CounterMerge(names_max=120, flush_ms=100)
    had = Counter(tenant for number in range(1000) for tenant in "abc" if tally.add(tenant, str(number), 1, 0))
    assert had == {"a": 30, "b": 30, "c": 30}


def test_a_failed_batch_is_given_again_unchanged_before_any_other() -> None:
    tally = CounterMerge(names_max=2, flush_ms=100)
    tally.add("t", "a", 1, 0)
    first = tally.take(100)
    tally.add("t", "a", 5, 110)
    assert tally.take(500) is None, "one at a time"
    tally.failed()
    assert tally.take(500) == first
    tally.done()
    second = tally.take(500)
    assert second is not None
    assert (second.number, second.sums) == (2, {"t:a": 5})


steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("tu"), st.sampled_from("abcdef"), st.integers(1, 5)),
        st.sampled_from(["take", "done", "lost", "fail", "tick"]),
    ),
    max_size=80,
)


@settings(max_examples=300, deadline=None)
@given(steps)
def test_every_signal_taken_is_in_storage_once_whatever_answers_get_lost(history: list[object]) -> None:
    tally, now_ms = CounterMerge(names_max=6, flush_ms=10), 0
    wanted: Counter[str] = Counter()
    stored: Counter[str] = Counter()
    last_number = 0
    under_way = None

    def write() -> None:
        nonlocal last_number
        assert under_way is not None
        if under_way.number > last_number:  # what the script of storage does
            last_number = under_way.number
            stored.update(under_way.sums)

    for step in [*history, "tick", "take", "done", "tick", "take", "done", "tick", "take", "done"]:
        if isinstance(step, tuple):
            if tally.add(*step, now_ms):
                wanted[f"{step[0]}:{step[1]}"] += step[2]
        elif step == "tick":
            now_ms += 10
        elif step == "take":
            taken = tally.take(now_ms)
            assert taken is None or len(taken.sums) <= 6
            under_way = taken or under_way
        elif under_way is not None:
            if step in ("done", "lost"):
                write()
            if step == "done":
                tally.done()
                under_way = None
            else:
                tally.failed()
    assert stored == wanted
