from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.figures import by_quarter, latency_ms, quantile, slope, spread, summaries


@given(st.lists(st.floats(0, 10), min_size=1), st.sampled_from([0.01, 0.25, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_the_smallest_sample_that_its_share_does_not_exceed(samples: list[float], q: float) -> None:
    ordered = sorted(samples)
    found = quantile(ordered, q)
    assert sum(sample <= found for sample in samples) >= q * len(samples)
    assert sum(sample < found for sample in samples) < q * len(samples)


def test_latencies_are_told_in_milliseconds_with_the_largest() -> None:
    assert latency_ms([n / 1000 for n in range(1, 101)]) == {"p50": 50.0, "p99": 99.0, "max": 100.0}
    assert latency_ms([]) == {}


def test_growth_is_the_slope_of_the_line_through_the_readings() -> None:
    assert slope([(0, 100.0), (1000, 300.0), (2000, 500.0)]) == pytest.approx(0.2)


def test_growth_that_ends_is_told_from_growth_that_goes_on_by_the_quarters_of_a_run() -> None:
    assert by_quarter([0, 10, 20, 30, 31, 33, 35, 36, 36, 36, 900, 36]) == [21, 5, 0]
    assert by_quarter([0, 10, 20, 30, 40, 50, 60, 70]) == [20, 20, 20]
    assert by_quarter([1, 2, 3]) == []


def test_runs_that_agree_in_their_parameters_are_summed_up_figure_by_figure() -> None:
    def result(rate: int, total: float, ok: bool = True) -> dict[str, object]:
        return {"bench": "latency", "system": "engine", "case": {"rate": rate}, "cpu": {"edge": total}, "ok": ok, "note": "x"}

    low, high = summaries([result(500, 3), result(2000, 9), result(500, 1), result(500, 2)])
    assert low["case"] == {"rate": 500}
    assert low["runs"] == 3
    assert low["cpu"] == {"edge": {"median": 2, "min": 1, "max": 3}}
    assert low["ok"] is True
    assert low["note"] == "x"
    assert high["runs"] == 1


def test_what_differs_between_runs_and_is_no_number_is_left_out() -> None:
    assert spread([{"at": "a", "n": 1}, {"at": "b", "n": 2, "extra": 1}]) == {"n": {"median": 1.5, "min": 1, "max": 2}}
