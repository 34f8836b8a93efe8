"""Every message is in one cluster or skipped with a reason; windows part clusters; too many lines are joined, none is lost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.model.category import DIGEST, INBOX, OFF, ON, Category
from engine.core.policy.profile import Profile
from engine.features.digest.core.clusters import (
    EXPIRED,
    FOCUS_MS,
    FOCUS_WINDOW_MS,
    MUTED,
    OTHER,
    REPLACED,
    WINDOW_MS,
    Cluster,
    clusters_of,
    shortened,
    sort_out,
    window_ms,
)
from engine.features.digest.core.missed import Missed
from engine.features.policy.core.contact_policy import Facts

NOW_MS = 10_000_000

messages = st.builds(
    lambda number, **members: Missed(id=f"m{number}", seq=number, **members),
    number=st.integers(1, 40),
    type=st.sampled_from(["post.liked", "order.paid", "notice", "promo.now"]),
    at_ms=st.integers(0, 600_000),
    expires_ms=st.sampled_from([0, NOW_MS, NOW_MS + 1]),
    high=st.booleans(),
    collapse=st.sampled_from(["", "", "k"]),
    replaces=st.sampled_from(["", "", "m1", "m2"]),
    target=st.sampled_from(["", "post:1", "post:2"]),
    text=st.sampled_from(["", "Order 1 left", "Order 2 left", "The lift is broken"]),
    actors=st.sampled_from([(), ("ana",), ("bob",)]),
)
missed_lists = st.lists(messages, max_size=25, unique_by=lambda missed: missed.id)
profiles = st.sampled_from([None, Profile(muted_types=("promo.*",), muted_targets=("post:2",))])
signs = st.lists(st.integers(0, 600_000), max_size=3)


def by_type(windows: Sequence[Sequence[Missed]]) -> list[list[int]]:
    """A model that groups by the first letter of the text."""
    return [[ord((missed.text or "a")[0]) for missed in window] for window in windows]


def shape(clusters: Sequence[Cluster]) -> list[tuple[str, ...]]:
    return [tuple(missed.id for missed in cluster.messages) for cluster in clusters]


@given(missed_lists, profiles, signs, st.booleans(), st.integers(1, 30))
def test_every_message_is_in_one_cluster_or_skipped_with_a_reason(
    every: list[Missed], profile: Profile | None, active_ms: list[int], modelled: bool, lines_max: int
) -> None:
    found = sort_out(every, profile, active_ms, NOW_MS)
    clusters = shortened(clusters_of(found, by_type(found.rest) if modelled else None), lines_max)
    placed = [missed.id for cluster in clusters for missed in cluster.messages]
    assert sorted([*placed, *(id for id, _ in found.skipped)]) == sorted(missed.id for missed in every)
    assert {reason for _, reason in found.skipped} <= {EXPIRED, MUTED, REPLACED}
    assert len(clusters) <= lines_max


@given(missed_lists, profiles, signs, st.integers(1, 30), st.randoms(use_true_random=False))
def test_the_order_in_which_messages_are_given_changes_nothing(
    every: list[Missed], profile: Profile | None, active_ms: list[int], lines_max: int, random: object
) -> None:
    def digest(some: list[Missed]) -> list[tuple[str, ...]]:
        found = sort_out(some, profile, active_ms, NOW_MS)
        return shape(shortened(clusters_of(found, by_type(found.rest)), lines_max))

    shuffled = list(every)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert digest(shuffled) == digest(every)


@given(missed_lists, signs)
def test_messages_of_a_cluster_follow_each_other_within_a_window(every: list[Missed], active_ms: list[int]) -> None:
    found = sort_out(every, None, active_ms, NOW_MS)
    for cluster in clusters_of(found, by_type(found.rest)):
        times = [missed.at_ms for missed in cluster.messages]
        assert times == sorted(times)
        for before, after in pairwise(times):
            assert after - before <= window_ms(after, sorted(active_ms))


@pytest.mark.parametrize(
    ("facts", "skipped"),
    [
        (Facts(type="promo.now"), True),
        (Facts(type="a", targets=("2", "post:2")), True),
        (Facts(type="a", category="news"), True),
        (Facts(type="a", category="weekly"), False),
        (Facts(type="a", category="feed"), False),
        (Facts(type="a", category="other", limits=Category(default=OFF)), True),
        (Facts(type="promo.now", category="law", limits=Category(mandatory=True)), False),
        (Facts(type="promo.now", category="billing", limits=Category(user_may=1 << ON)), False),
    ],
)
def test_what_the_user_has_turned_off_by_now_is_skipped_and_what_is_wanted_in_the_digest_is_not(facts: Facts, skipped: bool) -> None:
    categories = {"news": OFF, "weekly": DIGEST, "feed": INBOX}
    profile = Profile(muted_types=("promo.*",), muted_targets=("post:2",), categories=categories)
    found = sort_out([Missed(id="m", type=facts.type, at_ms=1, facts=facts)], profile, (), NOW_MS)
    assert found.skipped == ([("m", MUTED)] if skipped else [])


@pytest.mark.parametrize(("choice", "skipped"), [(OFF, True), (DIGEST, False), (ON, False)])
def test_category_off_by_mail_is_missing_from_the_mail_digest(choice: int, skipped: bool) -> None:
    missed = Missed(id="m", type="a", at_ms=1, facts=Facts(type="a", category="news"))
    profile = Profile(channels={"news/email": choice})
    assert sort_out([missed], profile, (), NOW_MS, "email").skipped == ([("m", MUTED)] if skipped else [])
    assert sort_out([missed], profile, (), NOW_MS).skipped == [], "one that is asked for has it"


def liked(id: str, at_ms: int, **members: object) -> Missed:
    return Missed(id=id, type="post.liked", at_ms=at_ms, target="post:1", **members)  # type: ignore[arg-type]


def test_windows_are_shorter_while_the_user_was_active() -> None:
    apart = [liked("a", 0), liked("b", FOCUS_WINDOW_MS + 1)]
    away = clusters_of(sort_out(apart, None, (), NOW_MS), None)
    active = clusters_of(sort_out(apart, None, (1,), NOW_MS), None)
    assert (len(away), len(active)) == (1, 2)
    assert window_ms(FOCUS_MS, [0]) == FOCUS_WINDOW_MS
    assert window_ms(FOCUS_MS + 1, [0]) == WINDOW_MS


def test_the_newest_message_of_a_collapse_key_stands_for_the_older_ones() -> None:
    found = sort_out([liked("a", 0, collapse="k"), liked("b", 1, collapse="k"), liked("c", 2), liked("d", 3, replaces="c")], None, (), 9)
    assert found.skipped == [("a", REPLACED), ("c", REPLACED)]
    late = sort_out([liked("a", 5, seq=1, collapse="k"), liked("b", 1, seq=2, collapse="k")], None, (), 9)
    assert late.skipped == [("a", REPLACED)], "the newest by number, whenever it happened"


def test_high_priority_comes_first_then_what_is_newest() -> None:
    every = [liked("a", 5), Missed(id="b", type="order.paid", at_ms=1, target="order:1", high=True), liked("c", 600_000)]
    assert shape(clusters_of(sort_out(every, None, (), 1), None)) == [("b",), ("c",), ("a",)]


def test_more_clusters_than_lines_are_joined_by_intent_first() -> None:
    every = [liked("a", 0), liked("b", 10 * WINDOW_MS), Missed(id="c", type="order.paid", at_ms=3, target="order:1")]
    clusters = clusters_of(sort_out(every, None, (), 1), None)
    assert shape(shortened(clusters, 2)) == [("a", "b"), ("c",)]
    (only,) = shortened(clusters, 1)
    assert only.intent == OTHER
    assert shape([only]) == [("a", "c", "b")]


def test_texts_of_one_template_need_no_model() -> None:
    every = [Missed(id=f"n{n}", type="notice", at_ms=n, text=f"Backup {n} finished") for n in range(3)]
    found = sort_out([*every, Missed(id="x", type="notice", at_ms=9, text="The lift is broken")], None, (), 1)
    assert [missed.id for window in found.rest for missed in window] == ["x"]
    assert shape(clusters_of(found, None)) == [("x",), ("n0", "n1", "n2")]


@pytest.mark.parametrize("answer", [[], [[1]], [[1, 2, 3]], [[1, 2], [1]]])
def test_an_answer_of_the_model_that_does_not_fit_is_rejected(answer: list[list[int]]) -> None:
    every = [Missed(id=id, type="notice", at_ms=0, text=id) for id in ("the lift", "a soup")]
    with pytest.raises(ValueError):
        clusters_of(sort_out(every, None, (), 1), answer)
