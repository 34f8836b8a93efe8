"""The state of a user beside the messages: bounded in every part, and the same whatever is repeated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.policy.profile import Profile
from engine.core.policy.user_state import DELIVERIES_MAX, EVENTS_MAX, FOLLOWERS_MAX, Counters, TimelineEntry, UserState


def test_what_is_kept_of_a_user_is_bounded() -> None:
    user_state = UserState()
    for n in range(3 * EVENTS_MAX):
        user_state.notice(f"e{n}", n)
        user_state.follow({f"r{n}": f"3-{n}"}, ())
        assert user_state.is_new(f"d{n}")
    assert list(user_state.events.values()) == list(range(2 * EVENTS_MAX, 3 * EVENTS_MAX))
    assert (len(user_state.follows), len(user_state.deliveries)) == (FOLLOWERS_MAX, DELIVERIES_MAX)
    assert not user_state.empty


@pytest.mark.parametrize(
    "user_state",
    [
        UserState(profile=Profile()),
        UserState(counters=Counters(last={"post.liked": (5, 1000)})),
        UserState(timeline=[TimelineEntry("m", 1, "suppressed", "muted")]),
        UserState(events={"paid": 1}),
        UserState(follows={"away": "3-a"}),
        UserState(deliveries=["d"]),
    ],
)
def test_a_state_with_any_part_is_kept_and_counted(user_state: UserState) -> None:
    assert not user_state.empty
    assert user_state.size > UserState().size


def test_a_state_without_parts_or_with_counters_of_nothing_is_empty() -> None:
    assert UserState().empty
    assert UserState(counters=Counters()).empty


# -- Timeline. -----------------------------------------------------------------------------------------------------------
entries = st.builds(
    TimelineEntry, st.sampled_from(["m1", "m2"]), st.integers(0, 9), st.sampled_from(["deferred", "digested"]), st.just("r")
)


@given(st.lists(entries, max_size=12, unique=True), st.integers(1, 5))
def test_the_timeline_is_the_latest_decisions_in_their_order(decisions: list[TimelineEntry], entries_max: int) -> None:
    user_state = UserState()
    for decision in decisions:
        user_state.note(decision, entries_max)
    assert user_state.timeline == decisions[-entries_max:]


def test_a_decision_that_is_replayed_is_kept_once() -> None:
    user_state = UserState()
    decisions = [TimelineEntry("m", 1, "suppressed", "muted"), TimelineEntry("n", 1, "suppressed", "muted")]
    for decision in decisions * 2:
        user_state.note(decision, 9)
    assert user_state.timeline == decisions


def test_a_decision_until_some_time_is_kept_once_and_another_time_or_message_is_another_decision() -> None:
    user_state = UserState()
    first = TimelineEntry("m", 1, "deferred", "night", 50)
    repeated = TimelineEntry("m", 2, "deferred", "night", 50)
    others = [TimelineEntry("m", 3, "deferred", "night", 60), TimelineEntry("n", 4, "deferred", "night", 50)]
    for decision in (first, repeated, *others, repeated):
        user_state.note(decision, 9)
    assert user_state.timeline == [first, *others]


# -- Events. -------------------------------------------------------------------------------------------------------------
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 99))))
def test_an_event_has_the_latest_of_its_times_in_whatever_order_they_came(noticed: list[tuple[str, int]]) -> None:
    user_state = UserState()
    for event, at_ms in noticed:
        user_state.notice(event, at_ms)
    assert user_state.events == {event: max(at_ms for name, at_ms in noticed if name == event) for event, _ in noticed}


def test_the_event_that_came_longest_ago_is_dropped_first() -> None:
    user_state = UserState()
    for n in range(EVENTS_MAX):
        user_state.notice(f"e{n}", n)
    user_state.notice("e0", EVENTS_MAX)  # it came again
    user_state.notice("new", EVENTS_MAX + 1)
    assert "e0" in user_state.events
    assert "e1" not in user_state.events


def test_a_repeated_delivery_is_recognised_until_as_many_others_have_come() -> None:
    user_state = UserState()
    assert user_state.is_new("d")
    for n in range(DELIVERIES_MAX - 1):
        assert user_state.is_new(f"other-{n}")
        assert not user_state.is_new("d")
    assert user_state.is_new("last")
    assert user_state.is_new("d")


# -- Followers. ----------------------------------------------------------------------------------------------------------
def test_a_timer_follows_until_it_has_ended_and_no_proposed_one_replaces_it_before() -> None:
    user_state = UserState()
    user_state.follow({"away": "3-a", "idle": "3-b"}, ())
    user_state.follow({"away": "3-c", "idle": "3-d"}, ["3-b", "3-c"])
    assert user_state.follows == {"away": "3-a", "idle": "3-d"}


def test_a_timer_that_took_effect_follows_no_more_and_others_do() -> None:
    user_state = UserState(follows={"away": "3-a", "idle": "3-b"})
    user_state.took_effect("3-a")
    user_state.took_effect("3-x")
    assert user_state.follows == {"idle": "3-b"}


def test_the_rule_that_armed_a_timer_last_is_dropped_last() -> None:
    user_state = UserState()
    for n in range(FOLLOWERS_MAX):
        user_state.follow({f"r{n}": f"3-{n}"}, ())
    user_state.follow({"r0": "3-again"}, ["3-0"])
    user_state.follow({"new": "3-new"}, ())
    assert user_state.follows["r0"] == "3-again"
    assert "r1" not in user_state.follows
