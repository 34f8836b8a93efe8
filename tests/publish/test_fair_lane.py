"""The queue that tenants share: everything once, each tenant in its own order, nobody behind more than its share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.publish.fair_lane import FairLane

STEPS = st.one_of(
    st.tuples(st.just("append"), st.sampled_from("abc")),
    st.tuples(st.just("next"), st.just("")),
    st.tuples(st.just("pop"), st.integers(0, 20).map(str)),
)


@given(st.lists(STEPS, max_size=60))
def test_every_item_leaves_once_and_those_of_a_tenant_in_their_order(steps: list[tuple[str, str]]) -> None:
    lane: FairLane[int, str] = FairLane()
    waiting: list[tuple[int, str]] = []
    key = 0
    for what, value in steps:
        if what == "append":
            lane.append(value, key, value)
            waiting.append((key, value))
            key += 1
        elif what == "next" and waiting:
            taken = lane.pop_next()
            assert taken == next(entry for entry in waiting if entry[1] == taken[1])
            waiting.remove(taken)
        elif what == "pop" and waiting:
            found = waiting.pop(int(value) % len(waiting))
            assert lane.pop(found[0]) == found[1]
        assert len(lane) == len(waiting)
        assert all(entry[0] in lane for entry in waiting)
        assert sorted(entry for of_tenant in lane.in_order() for entry in of_tenant) == waiting
        for tenant in "abc":
            assert lane.first_of(tenant) == (tenant if any(entry[1] == tenant for entry in waiting) else None)
    assert lane.pop(key) is None
    if not waiting:
        with pytest.raises(IndexError):
            lane.pop_next()


@given(st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(1, 9), min_size=1, max_size=30), min_size=2), st.integers(0, 60))
def test_tenants_that_wait_all_the_time_get_the_same_service_up_to_one_item_each(costs: dict[str, list[int]], taken: int) -> None:
    lane: FairLane[tuple[str, int], int] = FairLane()
    for tenant, sizes in costs.items():
        for number, size in enumerate(sizes):
            lane.append(tenant, (tenant, number), size, size)
    served = dict.fromkeys(costs, 0)
    for _ in range(taken):
        if any(lane.first_of(tenant) is None for tenant in costs):
            break
        (tenant, _), size = lane.pop_next()
        served[tenant] += size
        assert max(served.values()) - min(served.values()) <= 2 * 9, "two times the largest item, as proven in section 2 of the paper"


def test_a_tenant_that_was_away_has_no_credit_for_it() -> None:
    lane: FairLane[int, str] = FairLane()
    for key in range(4):
        lane.append("busy", key, "busy")
    assert [lane.pop_next()[0] for _ in range(2)] == [0, 1]
    for key in range(10, 14):
        lane.append("back", key, "back")
    assert [lane.pop_next()[0] for _ in range(6)] == [10, 2, 11, 3, 12, 13]


def test_a_lane_that_is_never_served_forgets_items_taken_out() -> None:
    lane: FairLane[int, str] = FairLane()
    lane.append("a", 0, "a")
    for key in range(1, 1000):
        lane.append("a", key, "a")
        lane.pop(key - 1)
    assert len(lane._heads) < 100
    assert lane.pop_next() == (999, "a")
