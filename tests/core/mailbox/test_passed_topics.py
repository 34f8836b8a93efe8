"""What passes of the topics of tokens, and what is owed of it."""

from __future__ import annotations

from engine.core.mailbox.passed_topics import TOPICS_MAX, PassedTopics


def test_what_passed_between_leaving_and_coming_back_is_owed() -> None:
    passed = PassedTopics()
    passed.left("team", 100)
    passed.joined("team", 0, 200)
    assert passed.owed() == {}, "nobody is back"
    passed.claim(["team", "other"], 50)
    assert passed.owed() == {"team": (100, 200)}


def test_nothing_is_owed_from_before_a_connection_began() -> None:
    passed = PassedTopics()
    passed.left("team", 100)
    passed.joined("team", 0, 200)
    passed.claim(["team"], 150)
    assert passed.owed() == {"team": (150, 200)}
    passed.claim(["team"], 120)
    assert passed.owed() == {"team": (120, 200)}, "the oldest connection counts"


def test_a_connection_that_began_after_the_topic_was_back_is_owed_nothing() -> None:
    passed = PassedTopics()
    passed.left("team", 100)
    passed.joined("team", 0, 200)
    passed.claim(["team"], 250)
    assert passed.owed() == {}


def test_a_topic_that_no_connection_has_named_here_passed_from_the_first_one_on() -> None:
    passed = PassedTopics()
    passed.joined("team", 30, 80)
    passed.claim(["team"], 0)
    assert passed.owed() == {"team": (30, 80)}


def test_a_topic_that_left_and_came_back_at_the_same_position_is_owed_nothing() -> None:
    passed = PassedTopics()
    passed.left("team", 100)
    passed.joined("team", 0, 100)
    passed.claim(["team"], 0)
    assert passed.owed() == {}


def test_what_is_adopted_is_not_owed_any_more() -> None:
    passed = PassedTopics()
    passed.left("team", 100)
    passed.joined("team", 0, 200)
    passed.claim(["team"], 0)
    passed.adopted(["team"], 150)
    assert passed.owed() == {"team": (150, 200)}
    passed.adopted(["team"], 200)
    assert passed.owed() == {}


def test_what_is_owed_when_the_topic_leaves_again_is_owed_when_it_is_back() -> None:
    passed = PassedTopics()
    passed.left("team", 100)
    passed.joined("team", 0, 200)
    passed.claim(["team"], 0)
    passed.left("team", 300)
    passed.adopted(["team"], 400)
    passed.joined("team", 0, 500)
    passed.claim(["team"], 0)
    assert passed.owed() == {"team": (100, 500)}


def test_of_too_many_topics_the_oldest_is_owed_nothing() -> None:
    passed = PassedTopics()
    for number in range(TOPICS_MAX + 1):
        passed.left(f"t{number}", 100 + number)
    for number in (0, 1, TOPICS_MAX):
        passed.joined(f"t{number}", 0, 5000)
    passed.claim(["t0", "t1", f"t{TOPICS_MAX}"], 0)
    assert passed.owed() == {"t0": (1100, 5000), "t1": (101, 5000), f"t{TOPICS_MAX}": (1100, 5000)}
