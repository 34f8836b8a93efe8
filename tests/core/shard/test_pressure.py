"""How hard a shard is pressed: levels, their hysteresis, and when a refused publisher may come back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.config import Config
from engine.core.model.constants import HIGH, LOW, NORMAL
from engine.core.shard.pressure import CALM, LAG_FACTORS, SHARES, Load, Pressure

CONFIG = Config(
    pressure_lag_ms=250,
    pressure_calm_ms=1000,
    shard_memory_bytes_max=1_000_000,
    shard_memory_messages_max=1000,
    posts_pending_max=1000,
)


def load(*, lag_ms: int = 0, posts: int = 0, messages: int = 0, size: int = 0, freed: int = 0) -> Load:
    return Load(lag_ms, posts, messages, size, freed)


def wanted(measured: Load) -> int:
    """The level by the table of the module, without hysteresis."""
    shares = (measured.posts / 1000, measured.messages / 1000, measured.bytes / 1_000_000)
    lag = measured.lag_ms / CONFIG.pressure_lag_ms
    return max(
        max((level for level, at in enumerate(SHARES, 1) for share in shares if share >= at), default=0),
        max((level for level, at in enumerate(LAG_FACTORS, 1) if lag >= at), default=0),
    )


def test_each_measure_alone_raises_the_level() -> None:
    for level, (share, factor) in enumerate(zip(SHARES, LAG_FACTORS, strict=True), 1):
        thousandth = round(share * 1000)
        for measured in (
            load(lag_ms=factor * 250),
            load(posts=thousandth),
            load(messages=thousandth),
            load(size=thousandth * 1000),
        ):
            assert Pressure(CONFIG).measure(measured, 0) == level


def test_a_level_ends_only_after_a_calm_time_and_one_by_one() -> None:
    pressure = Pressure(CONFIG)
    pressure.measure(load(size=900_000), 0)
    levels = [pressure.measure(load(), now_ms) for now_ms in range(100, 4000, 100)]
    assert levels == [3] * 10 + [2] * 10 + [1] * 10 + [0] * 9


def test_a_level_of_lag_alone_ends_one_by_one_as_soon_as_no_post_waits() -> None:
    pressure = Pressure(CONFIG)
    pressure.measure(load(lag_ms=1300, posts=40, messages=40), 0)
    assert pressure.measure(load(lag_ms=20, posts=1, messages=1), 100) == 3, "one that waits keeps it for the calm time"
    assert [pressure.measure(load(), now_ms) for now_ms in (200, 300, 400, 500)] == [2, 1, 0, 0]


def test_a_level_of_lag_that_began_while_memory_was_short_keeps_the_calm_time() -> None:
    pressure = Pressure(CONFIG)
    pressure.measure(load(lag_ms=1300, posts=400, messages=400), 0)
    assert [pressure.measure(load(), now_ms) for now_ms in (100, 200, 1000)] == [3, 3, 3]


def test_a_load_just_below_a_threshold_keeps_the_level() -> None:
    pressure = Pressure(CONFIG)
    pressure.measure(load(size=500_000), 0)
    assert {pressure.measure(load(size=400_000), now_ms) for now_ms in range(100, 60_000, 100)} == {1}
    assert pressure.measure(load(size=300_000), 60_000) == 1
    assert pressure.measure(load(size=300_000), 61_000) == 0


def test_low_goes_first_then_normal_and_high_never_by_level() -> None:
    pressure = Pressure(CONFIG)
    refused = []
    for size in (0, 500_000, 700_000, 850_000):
        pressure.measure(load(size=size), 0)
        refused.append([priority for priority in (HIGH, NORMAL, LOW) if pressure.refuses(priority)])
    assert refused == [[], [], [LOW], [NORMAL, LOW]]


def test_a_refused_publisher_comes_back_when_the_excess_has_left_at_the_rate_seen() -> None:
    pressure = Pressure(CONFIG)
    freed = 0
    for now_ms in range(0, 10_000, 100):
        freed += 5000  # 50 bytes per ms
        pressure.measure(load(size=900_000, freed=freed), now_ms)
    excess = 900_000 - SHARES[0] * CALM * 1_000_000
    assert abs(pressure.retry_ms() - excess / 50) < 100


def test_a_lag_alone_tells_to_come_back_after_the_lag() -> None:
    pressure = Pressure(CONFIG)
    pressure.measure(load(lag_ms=3000), 0)
    assert pressure.retry_ms() == 3000
    assert not pressure.tight


@given(
    st.lists(
        st.tuples(st.integers(1, 500), st.integers(0, 2000), st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1_000_000)),
        max_size=60,
    )
)
def test_the_level_rises_at_once_and_falls_after_the_calm_time_or_without_memory_when_no_post_waits(
    steps: list[tuple[int, int, int, int, int]],
) -> None:
    pressure = Pressure(CONFIG)
    now_ms, before, changed_ms, freed, of_memory = 0, 0, 0, 0, False
    for elapsed_ms, lag_ms, posts, messages, size in steps:
        now_ms += elapsed_ms
        freed += size
        measured = load(lag_ms=lag_ms, posts=posts, messages=messages, size=size, freed=freed)
        level = pressure.measure(measured, now_ms)
        assert level >= wanted(measured)
        of_memory = max(messages / 1000, size / 1_000_000) >= SHARES[0] * CALM or (of_memory and before > 0)
        may_fall = now_ms - changed_ms >= CONFIG.pressure_calm_ms or not (posts or of_memory)
        assert level >= before or (level == before - 1 and may_fall)
        assert level <= max(before, wanted(measured))
        if level != before:
            changed_ms = now_ms
        before = level
        assert 0 <= pressure.retry_ms() <= 60_000
