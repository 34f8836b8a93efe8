"""Connections become even when an edge joins, and are left alone otherwise."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from engine.core.controller.connection_balance import ConnectionBalance

PER_S, UNEVEN_MIN = 50, 50
ROUND_MS = 2000


def balance() -> ConnectionBalance:
    return ConnectionBalance(PER_S, UNEVEN_MIN)


def processes(count: int, started: int = 1) -> dict[int, tuple[int, int]]:
    return {edge: (edge, started) for edge in range(count)}


def test_joining_edge_gets_connections_above_the_mean() -> None:
    policy = balance()
    assert policy.observe({0: 1000}, processes(1), 0) == {}
    assert policy.observe({0: 1000, 1: 0}, processes(2), ROUND_MS) == {0: 500}
    assert policy.observe({0: 900, 1: 100}, processes(2), 2 * ROUND_MS) == {}, "its clients are on their way"
    assert policy.observe({0: 750, 1: 250}, processes(2), 60_000) == {0: 250}


def test_a_few_connections_are_not_worth_a_reconnect() -> None:
    assert balance().observe({0: 2 * UNEVEN_MIN - 2, 1: 0}, processes(2), 0) == {}
    assert balance().observe({0: 2 * UNEVEN_MIN, 1: 0}, processes(2), 0) == {0: UNEVEN_MIN}
    assert balance().observe({0: 1200, 1: 1000}, processes(2), 0) == {}, "nearly even"


def test_edges_that_become_uneven_by_themselves_are_left_alone() -> None:
    policy = balance()
    assert policy.observe({0: 500, 1: 500}, processes(2), 0) == {}
    assert policy.observe({0: 1000, 1: 100}, processes(2), 60_000) == {}
    assert policy.observe({0: 1000, 1: 0}, {0: (0, 1), 1: (1, 2)}, 120_000) == {0: 500}, "its process is a new one"


def test_an_edge_back_after_one_round_is_no_new_one() -> None:
    policy = balance()
    assert policy.observe({0: 500, 1: 500}, processes(2), 0) == {}
    assert policy.observe({0: 1000}, processes(1), 60_000) == {}
    assert policy.observe({0: 1000, 1: 100}, processes(2), 120_000) == {}


def test_edge_that_does_not_answer_as_another_joins_gives_its_surplus_later() -> None:
    policy = balance()
    assert policy.observe({0: 1000}, processes(1), 0) == {}
    assert policy.observe({1: 0}, {1: (1, 1)}, ROUND_MS, silent=1) == {}
    assert policy.observe({0: 1000, 1: 0}, processes(2), 2 * ROUND_MS) == {0: 500}


def test_sticky_load_balancer_ends_the_rounds() -> None:
    policy = balance()
    rounds = [policy.observe({0: 1000, 1: 0}, processes(2), at * 60_000) for at in range(20)]
    assert 0 < sum(map(bool, rounds)) <= 8
    assert rounds[-1] == {}


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=6), st.integers(1, 3), st.integers(0, 1 << 32))
def test_random_reconnects_make_edges_even(before: list[int], joining: int, seed: int) -> None:
    random, policy = Random(seed), balance()
    policy.observe(dict(enumerate(before)), processes(len(before)), 0)
    counts = dict(enumerate([*before, *[0] * joining]))
    for at in range(1, 12):
        for edge, released in policy.observe(counts, processes(len(counts)), at * 300_000).items():
            assert 0 < released <= counts[edge]
            counts[edge] -= released
            for _ in range(released):
                counts[random.randrange(len(counts))] += 1
    mean = sum(before) / len(counts)
    assert sum(counts.values()) == sum(before)
    assert max(counts.values()) <= max(1.25 * mean, mean + UNEVEN_MIN)
