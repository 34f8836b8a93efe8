"""Counter signals: merged, written in batches, each once."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
from hypothesis import given, settings

from engine.core.edge.counter_merge import CounterMerge


def test_signals_merge_and_leave_when_they_are_due() -> None:
    tally = CounterMerge(names_max=10, flush_ms=100)
    assert tally.next_at() is None
    for _ in range(1000):
        assert tally.add("views:1", 1, 50)
    assert tally.add("views:2", 3, 60)
    assert tally.next_at() == 150
    assert tally.take(149) is None
    batch = tally.take(150)
    assert batch is not None
    assert (batch.number, batch.sums) == (1, {"views:1": 1000, "views:2": 3})


def test_a_full_batch_does_not_wait_and_refuses_what_it_has_no_room_for() -> None:
    tally = CounterMerge(names_max=2, flush_ms=100)
    assert tally.add("a", 1, 0)
    assert tally.add("b", 1, 0)
    assert not tally.add("c", 1, 0)
    assert tally.add("a", 1, 0), "what it has still merges"
    batch = tally.take(0)
    assert batch is not None
    assert batch.sums == {"a": 2, "b": 1}


def test_a_failed_batch_is_given_again_unchanged_before_any_other() -> None:
    tally = CounterMerge(names_max=2, flush_ms=100)
    tally.add("a", 1, 0)
    first = tally.take(100)
    tally.add("a", 5, 110)
    assert tally.take(500) is None, "one at a time"
    tally.failed()
    assert tally.take(500) == first
    tally.done()
    second = tally.take(500)
    assert second is not None
    assert (second.number, second.sums) == (2, {"a": 5})


steps = st.lists(
    st.one_of(st.tuples(st.sampled_from("abcdef"), st.integers(1, 5)), st.sampled_from(["take", "done", "lost", "fail", "tick"])),
    max_size=80,
)


@settings(max_examples=300, deadline=None)
@given(steps)
def test_every_signal_taken_is_in_storage_once_whatever_answers_get_lost(history: list[object]) -> None:
    tally, now_ms = CounterMerge(names_max=3, flush_ms=10), 0
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
                wanted[step[0]] += step[1]
        elif step == "tick":
            now_ms += 10
        elif step == "take":
            taken = tally.take(now_ms)
            assert taken is None or len(taken.sums) <= 3
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
