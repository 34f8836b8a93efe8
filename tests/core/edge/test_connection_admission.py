"""Who may connect, and when the others are to come again."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.config import Config
from engine.core.edge import connection_admission
from engine.core.edge.connection_admission import ConnectionAdmission, NotAdmitted

CONFIG = Config(
    connections_per_s=100,
    connections_idle_per_s=1000,
    connections_burst_s=3,
    connections_warmup_ms=2000,
    connections_retry_s_max=60,
    connections_of_user_per_s=4,
    connections_of_user_burst=8,
)
STARTED_MS = 5_000.0
WARM_MS = STARTED_MS + 100_000


def wait_ms(admission: ConnectionAdmission, user: str, now_ms: float) -> float:
    """0 for an admitted connection, otherwise after how long to ask again."""
    refused = admission.admit(user, now_ms)
    return 0 if refused is None else refused.retry_ms


def admitted(admission: ConnectionAdmission, from_ms: float, to_ms: float) -> int:
    """How many of the clients that ask every ms are admitted; each is another user."""
    return sum(admission.admit(f"{at_ms}/{n}", at_ms) is None for at_ms in range(int(from_ms), int(to_ms)) for n in range(2))


def drained(now_ms: float = WARM_MS) -> ConnectionAdmission:
    """A warm edge that has admitted its burst."""
    admission = ConnectionAdmission(CONFIG, STARTED_MS)
    while admission.admit(f"first/{admission.users}", now_ms) is None:
        pass
    return admission


def test_a_warm_edge_admits_its_burst_at_once_and_then_its_rate() -> None:
    admission = ConnectionAdmission(CONFIG, STARTED_MS)
    assert sum(admission.admit(f"u{n}", WARM_MS) is None for n in range(1000)) == 300
    assert admitted(admission, WARM_MS, WARM_MS + 1000) in (99, 100)


def test_a_new_edge_admits_a_third_of_its_burst_and_reaches_its_rate_within_the_warm_up() -> None:
    admission = ConnectionAdmission(CONFIG, STARTED_MS)
    assert sum(admission.admit(f"u{n}", STARTED_MS) is None for n in range(1000)) == 100
    seconds = [admitted(admission, STARTED_MS + 1000 * n, STARTED_MS + 1000 * (n + 1)) for n in range(3)]
    assert abs(seconds[0] - 50) <= 1
    assert abs(seconds[1] - 83) <= 1
    assert abs(seconds[2] - 100) <= 1


def looked(admission: ConnectionAdmission, from_ms: float, to_ms: float, *, served: int = 0, delay_ms: float = 0.0) -> int:
    """How many are admitted while the owner looks ten times a second. `served`: how many messages are sent between two looks."""
    count, sent = 0, 0
    for at_ms in range(int(from_ms), int(to_ms), 100):
        sent += served
        admission.look(sent, delay_ms, at_ms)
        count += admitted(admission, at_ms, at_ms + 100)
    return count


def test_an_idle_edge_admits_more_and_gives_nearer_times() -> None:
    admission = drained()
    assert abs(looked(admission, WARM_MS, WARM_MS + 1000) - 1000) <= 101
    assert [round(wait_ms(admission, f"u{n}", WARM_MS + 1000)) for n in range(101)][-1] <= 2100
    gaps_ms = [round(wait_ms(admission, f"v{n}", WARM_MS + 1000), 6) for n in range(3)]
    assert {round(after - before, 6) for before, after in pairwise(gaps_ms)} == {1.0}


def test_an_edge_that_serves_others_or_is_late_admits_its_rate() -> None:
    assert looked(drained(), WARM_MS, WARM_MS + 5000, served=1) in range(490, 511)
    assert looked(drained(), WARM_MS, WARM_MS + 5000, delay_ms=21.0) in range(490, 511)


def test_an_edge_is_idle_a_second_after_it_served_somebody() -> None:
    admission = drained()
    admission.look(1, 0.0, WARM_MS)
    for at_ms in range(100, 1000, 100):
        admission.look(1, 0.0, WARM_MS + at_ms)
    assert admitted(admission, WARM_MS + 900, WARM_MS + 1000) in range(105)
    admission.look(1, 0.0, WARM_MS + 1000)
    assert admitted(admission, WARM_MS + 1000, WARM_MS + 1100) in range(100, 121)


def test_a_fixed_rate_is_an_idle_rate_that_is_not_above_it() -> None:
    admission = ConnectionAdmission(replace(CONFIG, connections_idle_per_s=1), STARTED_MS)
    while admission.admit(f"first/{admission.users}", WARM_MS) is None:
        pass
    assert looked(admission, WARM_MS, WARM_MS + 1000) in (99, 100, 101)


def test_the_refused_get_times_one_behind_the_other_at_the_rate_of_the_edge() -> None:
    admission = drained()
    waits_ms = [wait_ms(admission, f"u{n}", WARM_MS) for n in range(1000)]
    gaps_ms = {round(after - before, 6) for before, after in pairwise(waits_ms)}
    assert gaps_ms == {10.0}
    assert waits_ms[-1] < 1000 * 10 + 1000


def test_those_who_come_when_they_were_told_are_admitted() -> None:
    admission = drained()
    told = [WARM_MS + wait_ms(admission, f"u{n}", WARM_MS) for n in range(500)]
    assert all(admission.admit(f"u{n}", at_ms + 0.001) is None for n, at_ms in enumerate(told))


def test_no_time_is_beyond_the_longest_and_the_later_ones_are_spread_too() -> None:
    admission = drained()
    waits_ms = [wait_ms(admission, f"u{n}", WARM_MS) for n in range(20_000)]
    assert max(waits_ms) <= 60_000
    late = waits_ms[6000:]
    assert min(late) >= 30_000 - 10
    assert max(late.count(one_ms) for one_ms in set(late)) <= 5


def test_a_user_who_connects_in_a_loop_is_refused_before_the_others_notice() -> None:
    admission = ConnectionAdmission(CONFIG, STARTED_MS)
    waits_ms = [wait_ms(admission, "loop", WARM_MS) for _ in range(10_000)]
    assert waits_ms.count(0) == 8
    assert set(waits_ms[8:]) == {250.0}
    assert admission.admit("loop", WARM_MS) == NotAdmitted(250.0, by_user=True)
    assert sum(admission.admit(f"u{n}", WARM_MS) is None for n in range(1000)) == 292


def test_a_user_who_hammers_a_busy_edge_does_not_use_up_the_times_of_the_others() -> None:
    admission = drained()
    for _ in range(10_000):
        admission.admit("loop", WARM_MS)
    assert wait_ms(admission, "other", WARM_MS) <= 10 * (CONFIG.connections_of_user_burst + 2)


def test_users_are_forgotten_once_their_bucket_is_full_again_and_never_too_many_are_kept() -> None:
    admission = ConnectionAdmission(CONFIG, STARTED_MS)
    for n in range(1000):
        admission.admit(f"u{n}", WARM_MS)
    assert admission.users == 1000
    admission.admit("later", WARM_MS + 250)
    assert admission.users == 1


def test_the_number_of_users_is_bounded() -> None:
    admission = ConnectionAdmission(CONFIG, STARTED_MS)
    for n in range(connection_admission._USERS_MAX + 100):
        admission.admit(f"u{n}", WARM_MS)
    assert admission.users == connection_admission._USERS_MAX


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0, 300), st.integers(1, 40)), max_size=60),
    st.integers(1, 500),
    st.integers(1, 3),
    st.integers(1, 3000),
)
def test_no_span_of_time_sees_more_than_the_burst_and_the_rate(
    history: list[tuple[float, int]], rate_per_s: int, burst_s: int, warmup_ms: int
) -> None:
    config = replace(CONFIG, connections_per_s=rate_per_s, connections_burst_s=burst_s, connections_warmup_ms=warmup_ms)
    admission = ConnectionAdmission(replace(config, connections_idle_per_s=rate_per_s), 0)
    now_ms = 0.0
    count = users = 0
    for pause_ms, clients in history:
        now_ms += pause_ms
        for _ in range(clients):
            users += 1
            waited_ms = wait_ms(admission, f"u{users}", now_ms)
            count += waited_ms == 0
            assert 0 <= waited_ms <= max(60_000, 3 * 1000 / rate_per_s + warmup_ms) + 1
        assert count <= rate_per_s * burst_s + rate_per_s * now_ms / 1000 + 1e-6


def test_while_the_bucket_is_empty_a_client_gets_the_same_time_whether_its_request_is_read_or_not() -> None:
    read, unread = drained(), drained()
    for n in range(1000):
        now_ms = WARM_MS + n / 100
        assert read.admit(f"u{n}", now_ms) == unread.refuse_unread(now_ms)


def test_a_refusal_of_what_was_not_read_takes_no_token() -> None:
    admission = ConnectionAdmission(CONFIG, STARTED_MS)
    assert admission.refuse_unread(WARM_MS) is None
    for n in range(300):
        assert admission.admit(f"u{n}", WARM_MS) is None
    for _ in range(3000):
        assert admission.refuse_unread(WARM_MS) is not None
    assert admission.refuse_unread(WARM_MS + 11) is None
    assert admission.admit("later", WARM_MS + 11) is None
