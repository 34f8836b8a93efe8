"""What the policy wants, over time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import Config
from engine.features.autoscaling.core import (
    ActorLoad,
    Autoscaler,
    ScalingDecision,
    ScalingPolicy,
)

UP_MS, DOWN_MS = 10_000, 300_000
UP_SHARE, DOWN_SHARE, TARGET_SHARE = 0.7, 0.3, 0.5
STEP_MS = 2000
CONFIG = Config(
    autoscale_up_ms=UP_MS,
    autoscale_down_ms=DOWN_MS,
    autoscale_up_share=UP_SHARE,
    autoscale_down_share=DOWN_SHARE,
    autoscale_target_share=TARGET_SHARE,
)


def busy(*shares: float) -> list[ActorLoad]:
    return [ActorLoad(share) for share in shares]


def run(scaler: Autoscaler, loads: list[ActorLoad], start_ms: int, end_ms: int, settled: bool = True) -> list[ScalingDecision]:
    found = (scaler.observe(loads, now_ms, settled) for now_ms in range(start_ms, end_ms + 1, STEP_MS))
    return [decision for decision in found if decision is not None]


def test_ten_seconds_of_load_are_answered_at_once_and_no_earlier() -> None:
    scaler = Autoscaler("shards", "1-6", CONFIG)
    assert not run(scaler, busy(0.9, 0.9), 0, UP_MS - STEP_MS)
    (decision,) = run(scaler, busy(0.9, 0.9), UP_MS, UP_MS)
    assert (decision.action, decision.have, decision.wanted) == ("scale", 2, 4)
    assert decision.reason == "CPU 90% for 10 s, above 70%"


def test_a_pause_in_the_load_begins_the_time_anew() -> None:
    scaler = Autoscaler("shards", "1-6", CONFIG)
    run(scaler, busy(0.9), 0, 8000)
    run(scaler, busy(0.6), 9000, 9000)
    assert not run(scaler, busy(0.9), 10_000, 18_000)


def test_five_calm_minutes_are_answered_and_no_less() -> None:
    scaler = Autoscaler("shards", "1-6", CONFIG)
    assert not run(scaler, busy(*[0.1] * 6), 0, DOWN_MS - STEP_MS)
    (decision,) = run(scaler, busy(*[0.1] * 6), DOWN_MS, DOWN_MS)
    assert (decision.have, decision.wanted) == (6, 3), "half of them at most at once"


def test_the_highest_load_of_the_calm_time_counts() -> None:
    scaler = Autoscaler("shards", "1-6", CONFIG)
    run(scaler, busy(0.29, 0.29, 0.29, 0.29), 0, 2000)
    (decision,) = run(scaler, busy(0.01, 0.01, 0.01, 0.01), 4000, DOWN_MS)
    assert decision.wanted == 3


def test_while_slots_move_nothing_is_decided_and_the_time_begins_anew() -> None:
    scaler = Autoscaler("shards", "1-6", CONFIG)
    assert not run(scaler, busy(1.0), 0, 8000)
    assert not run(scaler, busy(1.0), 10_000, 60_000, settled=False)
    assert not run(scaler, busy(1.0), 62_000, 70_000)
    assert run(scaler, busy(1.0), 72_000, 72_000)


def test_at_the_maximum_it_says_that_more_would_be_needed() -> None:
    (decision,) = run(Autoscaler("edges", "1-2", CONFIG), busy(1.0, 1.0), 0, UP_MS)
    assert (decision.action, decision.wanted) == ("none", 2)
    assert decision.reason.endswith("but 2 is the maximum")


@pytest.mark.parametrize(("have", "wanted"), [(1, 2), (5, 4)])
def test_numbers_outside_the_limits_are_brought_inside_at_once(have: int, wanted: int) -> None:
    decision = Autoscaler("shards", "2-4", CONFIG).observe(busy(*[0.5] * have), 0, settled=True)
    assert decision is not None
    assert (decision.action, decision.wanted) == ("scale", wanted)


def test_lateness_counts_only_where_the_thread_is_busy() -> None:
    (decision,) = run(Autoscaler("shards", "1-6", CONFIG), [ActorLoad(0.5, lag=3.0)], 0, UP_MS)
    assert (decision.action, decision.wanted) == ("scale", 2)
    assert decision.reason.startswith("lag 300%")
    (decision,) = run(Autoscaler("shards", "1-6", CONFIG), [ActorLoad(0.2, lag=3.0)], 0, UP_MS)
    assert (decision.action, decision.wanted) == ("none", 1)
    assert decision.reason == "lag 300% for 10 s, but CPU 20%: it waits for something slow, and more shards would wait for it too"


def test_lateness_of_what_gets_no_core_counts_since_other_machines_have_some() -> None:
    (decision,) = run(Autoscaler("shards", "1-6", CONFIG), [ActorLoad(0.2, queued=0.5, lag=3.0)], 0, UP_MS)
    assert (decision.action, decision.wanted) == ("scale", 2)


def test_nothing_is_removed_while_it_is_late() -> None:
    found = run(Autoscaler("shards", "1-6", CONFIG), [ActorLoad(0.1, lag=3.0)] * 4, 0, 2 * DOWN_MS)
    assert {decision.action for decision in found} == {"none"}


def test_actors_that_wait_for_a_machine_are_not_wanted_again_and_no_longer_when_there_is_little_to_do() -> None:
    scaler = Autoscaler("shards", "1-6", CONFIG)
    found = [scaler.observe(busy(0.9, 0.9), now_ms, settled=True, waiting=2) for now_ms in range(0, UP_MS + 1, STEP_MS)]
    assert found[-1] is not None
    assert (found[-1].action, found[-1].reason.rpartition(", ")[2]) == ("none", "but 2 more wait for a machine already")
    found = [scaler.observe(busy(0.2, 0.2), now_ms, settled=True, waiting=2) for now_ms in range(20_000, 20_001 + DOWN_MS, STEP_MS)]
    assert found[-1] is not None
    assert (found[-1].action, found[-1].have, found[-1].wanted) == ("scale", 2, 1)


@pytest.mark.parametrize(("load", "what"), [({"memory": 0.8}, "memory"), ({"connections": 0.8}, "connections")])
def test_every_full_table_counts(load: dict[str, float], what: str) -> None:
    (decision,) = run(Autoscaler("edges", "1-6", CONFIG), [ActorLoad(0.1, **load)], 0, UP_MS)
    assert decision.reason.startswith(what)


def test_one_shard_far_above_the_others_gives_slots_away_and_not_again_soon() -> None:
    scaler = Autoscaler("shards", "1-6", CONFIG)
    (decision,) = run(scaler, busy(0.9, 0.3, 0.3), 0, UP_MS)
    assert (decision.action, decision.reason) == ("rebalance", "CPU of one is 90% for 10 s, of all 50%")
    assert not run(scaler, busy(0.9, 0.3, 0.3), UP_MS + STEP_MS, DOWN_MS), "one slot that is as hot as a shard cannot be divided"


def test_at_the_maximum_a_shard_far_above_the_others_gives_slots_away_too() -> None:
    found = run(Autoscaler("shards", "1-2", CONFIG), busy(1.0, 0.5), 0, UP_MS)
    assert [decision.action for decision in found] == ["rebalance"]
    found = run(Autoscaler("shards", "1-4", CONFIG), busy(1.0, 0.5), 0, UP_MS)
    assert [decision.action for decision in found] == ["scale"], "with more of them slots are shared anew"


def test_connections_of_edges_are_not_moved() -> None:
    assert not run(Autoscaler("edges", "1-6", CONFIG), busy(0.9, 0.3, 0.3), 0, UP_MS)


@given(st.integers(1, 12), st.floats(0, 1))
def test_no_change_is_undone_by_its_own_effect(have: int, mean: float) -> None:
    scaler = Autoscaler("shards", "1-1000", CONFIG)
    for decision in run(scaler, busy(*[mean] * have), 0, DOWN_MS)[:1]:
        after = have * mean / decision.wanted
        assert decision.wanted != have
        assert after < UP_SHARE if decision.wanted < have else after > DOWN_SHARE


@given(st.lists(st.tuples(st.floats(0, 2), st.booleans()), max_size=400), st.integers(1, 6))
def test_it_stays_within_its_limits_whatever_is_measured(history: list[tuple[float, bool]], have: int) -> None:
    scaler = Autoscaler("shards", "2-5", CONFIG)
    for at, (share, settled) in enumerate(history):
        decision = scaler.observe(busy(*[share] * have), at * STEP_MS, settled)
        if decision is not None:
            assert settled
            assert 2 <= decision.wanted <= 5
            have = decision.wanted


CONFIG = Config(autoscale_shards="1-4", autoscale_schedulers="1-3", autoscale_edges="1-2")


def row(cpu_pct: float, **more: Any) -> dict[str, Any]:
    return {"cpu_pct": cpu_pct, **more}


def policy_run(
    policy: ScalingPolicy, shards: list[dict[str, Any]], edges: list[dict[str, Any]], end_ms: int, scheduler: Any = None
) -> list[ScalingDecision]:
    schedulers = [scheduler or row(5.0)]
    times = range(0, end_ms + 1, STEP_MS)
    return [decision for now_ms in times for decision in policy.observe(shards, schedulers, edges, now_ms, settled=True)]


def test_the_rows_of_the_status_are_what_it_goes_by() -> None:
    full = CONFIG.shard_memory_bytes_max
    (decision,) = policy_run(ScalingPolicy(CONFIG), [row(5.0, memory_bytes=full)], [row(5.0, connections={"sse": 3})], UP_MS)
    assert (decision.role, decision.wanted) == ("shards", 2)
    (decision,) = policy_run(ScalingPolicy(CONFIG), [row(5.0)], [row(5.0, connections={"sse": CONFIG.connections_max})], UP_MS)
    assert (decision.role, decision.wanted) == ("edges", 2)
    (decision,) = policy_run(ScalingPolicy(CONFIG), [row(5.0)], [row(5.0)], UP_MS, scheduler=row(90.0))
    assert (decision.role, decision.wanted, decision.reason) == ("schedulers", 2, "CPU 90% for 10 s, above 70%")
    (decision,) = policy_run(ScalingPolicy(CONFIG), [row(5.0)], [row(5.0)], UP_MS, scheduler=row(5.0, lag_ms=CONFIG.pressure_lag_ms))
    assert (decision.role, decision.action) == ("schedulers", "none"), "it waits for its shards"


def test_a_role_without_limits_is_left_alone_and_without_any_it_is_off() -> None:
    assert ScalingPolicy(Config()).mode == "off"
    assert not policy_run(ScalingPolicy(Config(autoscale_shards="1-4")), [row(50.0)], [row(100.0)], UP_MS)


def test_a_dry_run_shows_a_decision_once_and_another_one_anew() -> None:
    policy = ScalingPolicy(Config(autoscale_shards="1-4", autoscale_dry_run=True))
    assert policy.mode == "dry run"
    assert len(policy_run(policy, [row(100.0)], [], 5 * UP_MS)) == 1
    assert not policy.observe([row(50.0)], [], [], 0, settled=True)
    assert len(policy_run(policy, [row(100.0), row(100.0)], [], 5 * UP_MS)) == 1
