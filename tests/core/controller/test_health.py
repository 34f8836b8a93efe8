"""What the controller makes of answers and of silence; no actor, no clock."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engine.core.controller.health import START_GRACE_FACTOR, HealthWatch, LatencyWindow, merge, quantile_ms, subtract, totals


def stats(pid: int = 7, cpu_s: float = 0.0, **more: Any) -> dict[str, Any]:
    return {
        "role": "shard",
        "index": 0,
        "pid": pid,
        "node": "10.0.0.1",
        "started_ms": pid,
        "cpu_s": cpu_s,
        "queued_s": 0.0,
        "rss_bytes": 1,
        "ready": True,
        **more,
    }


def watch() -> HealthWatch:
    return HealthWatch("shard", 0, timeout_ms=1000, now_ms=0)


def test_an_actor_that_has_never_answered_is_left_alone_for_it_may_wait_for_a_machine() -> None:
    one = watch()
    one.failed()
    assert one.verdict(10**9) == "leave"
    assert not one.row()["alive"]
    assert one.row()["pid"] is None


def test_an_actor_older_than_its_watch_has_the_time_of_a_start() -> None:
    one = watch()
    one.restarting(100)
    one.asked(200)
    assert one.verdict(100 + START_GRACE_FACTOR * 1000) == "leave"
    assert one.verdict(101 + START_GRACE_FACTOR * 1000) == "replace"


def test_silence_within_the_timeout_is_forgiven() -> None:
    one = watch()
    one.answered(stats(), 500)
    one.asked(600)
    one.failed()
    assert one.verdict(1600) == "leave"


def test_only_silence_to_a_question_counts() -> None:
    one = watch()
    one.answered(stats(), 500)
    assert one.verdict(10_000) == "leave"
    one.asked(10_000)
    one.asked(10_900)
    assert one.verdict(11_000) == "leave"
    assert one.verdict(11_001) == "replace"


def test_longer_silence_means_one_replacement_and_then_time_to_start() -> None:
    one = watch()
    one.answered(stats(), 400)
    one.asked(500)
    assert one.verdict(1501) == "replace"
    assert one.verdict(1502) == "leave"
    assert one.verdict(1501 + START_GRACE_FACTOR * 1000) == "leave"
    assert one.verdict(1502 + START_GRACE_FACTOR * 1000) == "replace"


def test_a_process_that_ray_starts_again_has_time_to_start_however_often_it_is_asked() -> None:
    one = watch()
    one.answered(stats(), 400)
    one.asked(500)
    one.restarting(900)
    one.restarting(1500)
    assert one.verdict(900 + START_GRACE_FACTOR * 1000) == "leave"
    assert one.verdict(901 + START_GRACE_FACTOR * 1000) == "replace"
    one.answered(stats(pid=8), 8000)
    one.asked(8000)
    assert one.verdict(9001) == "replace", "then it has the usual timeout again"


def test_a_call_is_not_counted_while_the_asker_itself_was_cut_off() -> None:
    one = watch()
    one.answered(stats(), 400)
    one.excuse(450)
    one.asked(500)
    one.excuse(1501)
    assert one.verdict(1501) == "leave"
    assert one.verdict(2501) == "leave"
    assert one.verdict(2502) == "replace"


def test_an_answer_after_a_replacement_brings_back_the_usual_timeout() -> None:
    one = watch()
    one.answered(stats(), 0)
    one.asked(0)
    assert one.verdict(1001) == "replace"
    one.answered(stats(pid=8), 3000)
    one.asked(3000)
    assert one.verdict(4000) == "leave"
    assert one.verdict(4001) == "replace"


def test_another_process_is_a_restart_and_starts_its_cpu_share_anew() -> None:
    one = watch()
    one.answered(stats(cpu_s=1.0), 1000)
    one.answered(stats(cpu_s=1.5), 2000)
    assert one.row()["cpu_pct"] == 50.0
    assert one.row()["restarts"] == 0
    one.answered(stats(pid=8, cpu_s=0.1), 3000)
    assert one.row()["cpu_pct"] == 0.0
    assert one.row()["restarts"] == 1


def test_the_same_pid_in_a_new_process_is_a_restart_too() -> None:
    one = watch()
    one.answered(stats(), 1000)
    one.answered(stats(started_ms=99), 2000)
    assert one.row()["restarts"] == 1


def test_a_silent_actor_is_neither_alive_nor_ready_but_its_last_numbers_are_kept() -> None:
    one = watch()
    one.answered(stats(users=5), 1000)
    one.failed()
    row = one.row()
    assert (row["alive"], row["ready"], row["users"], row["pid"]) == (False, False, 5, 7)


BOUNDS = (1, 5, 10, 100, -1)
counts = st.lists(st.integers(0, 1000), min_size=len(BOUNDS), max_size=len(BOUNDS))


def histogram(numbers: list[int]) -> list[list[float]]:
    return [[bound, number] for bound, number in zip(BOUNDS, numbers, strict=True)]


@given(counts, counts)
def test_what_was_added_is_what_subtracting_gives_back(old: list[int], new: list[int]) -> None:
    assert subtract(merge([histogram(old), histogram(new)]), histogram(old)) == histogram(new)


def test_a_counter_that_fell_counts_from_zero() -> None:
    assert subtract([[1, 3], [-1, 9]], [[1, 10], [-1, 4]]) == [[1, 3], [-1, 5]]


@given(counts, st.floats(0.01, 1))
def test_a_quantile_lies_in_the_bucket_that_holds_its_rank(numbers: list[int], fraction: float) -> None:
    value = quantile_ms(histogram(numbers), fraction)
    if not sum(numbers):
        assert value is None
        return
    assert value is not None
    rank, seen = fraction * sum(numbers), 0
    for lower, upper, number in zip((0, *BOUNDS), BOUNDS, numbers, strict=False):
        seen += number
        if seen >= rank and number:
            assert lower - 0.01 <= value <= (upper if upper > 0 else lower) + 0.01
            return


@given(counts)
def test_quantiles_grow_with_their_fraction(numbers: list[int]) -> None:
    values = [quantile_ms(histogram(numbers), fraction) for fraction in (0.5, 0.95, 0.99)]
    assert values == sorted(values, key=lambda value: value or 0)


def test_the_window_forgets_what_is_older_than_itself() -> None:
    window = LatencyWindow(10_000)
    window.add([[1, 0], [100, 0], [-1, 0]], 0)
    window.add([[1, 0], [100, 50], [-1, 0]], 1000)
    assert (window.quantiles()["p50_ms"] or 0) > 1
    for second in range(2, 20):
        window.add([[1, 100 * second], [100, 50], [-1, 0]], second * 1000)
    assert (window.quantiles()["p99_ms"] or 99) <= 1


def test_without_recent_messages_the_quantiles_of_everything_so_far_stand() -> None:
    window = LatencyWindow(10_000)
    assert window.quantiles() == {"p50_ms": None, "p95_ms": None, "p99_ms": None}
    for second in range(30):
        window.add([[1, 0], [100, 50], [-1, 0]], second * 1000)
    assert (window.quantiles()["p50_ms"] or 0) > 1


def test_quantiles_bear_the_prefix_of_their_window() -> None:
    window = LatencyWindow(10_000, "ack_")
    window.add([[1, 0], [100, 50], [-1, 0]], 0)
    assert window.quantiles().keys() == {"ack_p50_ms", "ack_p95_ms", "ack_p99_ms"}
    assert (window.quantiles()["ack_p50_ms"] or 0) > 1


def test_totals_are_sums_over_shards_and_of_what_is_quarantined_over_all() -> None:
    rows = [stats(connections=2, pending=1), stats(connections=3), {"role": "edge", "connections": {"websocket": 9}}]
    assert totals(rows)["connections"] == 5
    assert totals(rows)["pending"] == 1
    assert totals(rows)["published"] == totals(rows)["quarantined"] == 0
    assert totals([stats(quarantined=2), {"role": "scheduler", "quarantined": 1}])["quarantined"] == 3


def test_histograms_of_two_versions_add_up_by_their_bounds() -> None:
    assert merge([[[10, 1], [100, 2], [-1, 3]], [[20, 4], [100, 5], [-1, 6]]]) == [[10, 1], [20, 4], [100, 7], [-1, 9]]
