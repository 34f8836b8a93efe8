"""What a token bucket lets through, in any history of takers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.core.edge.token_bucket import TokenBucket, TokenBuckets

steps = st.lists(st.tuples(st.floats(0, 500), st.integers(1, 5)), max_size=60)


def test_a_burst_is_taken_at_once_and_then_the_rate_applies() -> None:
    bucket = TokenBucket(10, 3, 1000)
    assert [bucket.take(1000) for _ in range(4)] == [True, True, True, False]
    assert bucket.wait_ms(1000) == 100
    assert not bucket.take(1099)
    assert bucket.take(1100)
    assert not bucket.take(1100)


def test_a_pause_gives_no_more_than_the_burst() -> None:
    bucket = TokenBucket(10, 3, 0)
    assert bucket.take(0, 3)
    assert bucket.full(10_000)
    assert not bucket.take(10_000, 4)
    assert bucket.take(10_000, 3)


def test_tokens_are_added_up_to_the_burst() -> None:
    bucket = TokenBucket(10, 5, 0, tokens=0)
    bucket.put(2)
    assert not bucket.take(0, 3)
    bucket.put(100)
    assert bucket.take(0, 5)
    assert not bucket.take(0)


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = TokenBucket(1000, 1, 5000, tokens=0)
    assert not bucket.take(4000)
    assert bucket.take(5001)


@given(steps, st.integers(1, 100), st.integers(1, 20))
def test_no_span_of_time_sees_more_than_the_burst_and_the_rate(history: list[tuple[float, int]], rate_per_s: int, burst: int) -> None:
    bucket = TokenBucket(rate_per_s, burst, 0)
    now_ms = 0.0
    taken: list[tuple[float, int]] = []
    for pause_ms, tokens in history:
        now_ms += pause_ms
        if bucket.take(now_ms, tokens):
            taken.append((now_ms, tokens))
    for first, (from_ms, _) in enumerate(taken):
        for last in range(first, len(taken)):
            span_ms = taken[last][0] - from_ms
            assert sum(tokens for _, tokens in taken[first : last + 1]) <= burst + rate_per_s * span_ms / 1000 + 1e-6


@given(steps, st.integers(1, 100), st.integers(5, 20))
def test_who_waits_as_long_as_it_says_gets_the_tokens_and_not_before(history: list[tuple[float, int]], rate_per_s: int, burst: int) -> None:
    bucket = TokenBucket(rate_per_s, burst, 0)
    now_ms = 0.0
    for pause_ms, tokens in history:
        now_ms += pause_ms
        wait_ms = bucket.wait_ms(now_ms, tokens)
        if wait_ms > 1:
            assert not bucket.take(now_ms + wait_ms - 1, tokens)
        now_ms += wait_ms + 1e-6
        assert bucket.take(now_ms, tokens)


def test_no_more_buckets_are_kept_than_allowed_and_the_least_recent_goes_first() -> None:
    buckets = TokenBuckets(lambda now_ms: TokenBucket(10, 2, now_ms), 2)
    for key in "aba":
        assert buckets.of(key, 0).take(0)
    assert buckets.of("c", 0).take(0)
    assert len(buckets) == 2
    assert not buckets.of("a", 0).take(0)
    assert buckets.of("b", 0).take(0, 2), "forgotten"


@given(st.lists(st.tuples(st.floats(0, 500), st.sampled_from("abcde")), max_size=60))
def test_a_forgotten_bucket_was_as_good_as_a_new_one(history: list[tuple[float, str]]) -> None:
    buckets = TokenBuckets(lambda now_ms: TokenBucket(10, 2, now_ms), 5)
    kept = {key: TokenBucket(10, 2, 0) for key in "abcde"}
    now_ms = 0.0
    for pause_ms, key in history:
        now_ms += pause_ms
        assert buckets.of(key, now_ms).take(now_ms) == kept[key].take(now_ms)
