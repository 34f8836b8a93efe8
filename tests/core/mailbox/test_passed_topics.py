"""What passes of the topics of tokens, by range."""

from __future__ import annotations

from engine.core.mailbox.passed_topics import RANGES_MAX, TOPICS_MAX, PassedTopics


def away(first: int, last: int) -> PassedTopics:
    """A topic was without connections meanwhile."""
    passed = PassedTopics()
    passed.left("team", first)
    passed.counts("team", 0, last)
    return passed


def test_the_range_between_leaving_and_return_is_remembered() -> None:
    passed = away(100, 200)
    assert passed.after("team", 50) == [(100, 200)]
    assert passed.after("team", 150) == [(150, 200)]
    assert passed.after("team", 200) == passed.after("other", 0) == []


def test_an_unnamed_topic_passed_from_the_first_connection_on() -> None:
    passed = PassedTopics()
    passed.counts("team", 30, 80)
    assert passed.after("team", 0) == [(30, 80)]


def test_a_topic_back_at_the_same_position_has_not_passed() -> None:
    assert away(100, 100).after("team", 0) == []


def test_each_absence_is_a_range() -> None:
    passed = away(100, 200)
    passed.left("team", 300)
    passed.counts("team", 0, 400)
    assert passed.after("team", 150) == [(150, 200), (300, 400)]
    passed.left("team", 400)
    passed.counts("team", 0, 500)
    assert passed.after("team", 0) == [(100, 200), (300, 500)]


def test_adopted_ranges_leave_in_parts() -> None:
    passed = away(100, 200)
    passed.adopted({"team": [(150, 200)]}, 180)
    assert passed.after("team", 0) == [(100, 150), (180, 200)]
    passed.adopted({"team": [(100, 150), (180, 200)]}, 500)
    assert passed.after("team", 0) == []


def test_an_open_range_is_adopted_up_to_a_position() -> None:
    passed = away(100, 200)
    passed.left("team", 200)
    passed.adopted({"team": [(100, 200)]}, 300)
    passed.remove("team", 200, 250)
    passed.counts("team", 0, 400)
    assert passed.after("team", 0) == [(250, 400)]


def test_a_forgotten_topic_has_not_passed() -> None:
    passed = away(100, 200)
    passed.forget("team")
    assert passed.after("team", 0) == []


def test_of_too_many_ranges_the_oldest_become_one() -> None:
    passed = PassedTopics()
    for number in range(RANGES_MAX + 1):
        passed.left("team", 100 * number)
        passed.counts("team", 0, 100 * number + 50)
    ranges = passed.after("team", 0)
    assert len(ranges) == RANGES_MAX
    assert ranges[:2] == [(0, 150), (200, 250)]


def test_of_too_many_topics_the_oldest_is_forgotten() -> None:
    passed = PassedTopics()
    for number in range(TOPICS_MAX + 1):
        passed.left(f"t{number}", 100 + number)
    for number in (0, 1, TOPICS_MAX):
        passed.counts(f"t{number}", 0, 5000)
    assert [passed.after(topic, 0) for topic in ("t0", "t1", f"t{TOPICS_MAX}")] == [[(1100, 5000)], [(101, 5000)], [(1100, 5000)]]
