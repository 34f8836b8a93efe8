"""Outcomes survive their encoding; a log is bounded; what a client's clock can tell, and what it cannot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.wire.outcomes import (
    ERASED,
    AcceptedOutcome,
    AcknowledgedOutcome,
    AnyOutcome,
    Outcome,
    OutcomeLog,
    SentOutcome,
    client_times,
    decode_outcomes,
    encode_outcomes,
    is_journalled,
    type_of,
)

names, times = st.text(max_size=20), st.integers(0, 2**48)
outcomes = st.one_of(
    st.builds(AcceptedOutcome, names, times, names, times, names, names, st.integers(-1, 2), names),
    st.builds(SentOutcome, names, times, names, times, st.integers(1, 9), names, names, st.integers(0, 3), names),
    st.builds(AcknowledgedOutcome, names, times, names, times, times, times, names, names, st.integers(-1, 3), names),
    st.builds(Outcome, names, times, names, names, times, names, names, times, names, names, names, names, st.integers(-1, 3), names),
)


@given(st.lists(outcomes, max_size=20))
def test_a_batch_is_read_as_it_was_written(batch: list[AnyOutcome]) -> None:
    assert decode_outcomes(encode_outcomes(batch)) == batch


def test_what_follows_from_the_journal_is_told_from_what_one_process_did() -> None:
    assert is_journalled(AcceptedOutcome("t:u", 1, "a", 1, "x"))
    assert is_journalled(Outcome("t:u", 1, "suppressed", "a"))
    assert not is_journalled(Outcome("t:u", 1, "revoked", "a"))
    assert not is_journalled(SentOutcome("t:u", 1, "a", 1, 1, "s", "", 0, "edge-0"))


def test_a_log_gives_the_oldest_first_and_drops_the_newest_beyond_its_limit() -> None:
    log = OutcomeLog(waiting_max=3)
    log.extend(Outcome("t:u", at_ms, "event") for at_ms in range(5))
    log.trim()
    assert (len(log), log.dropped) == (3, 2)
    assert [outcome.at_ms for outcome in log.take(2)] == [0, 1]
    log.add(Outcome("t:u", 9, "event"))
    assert [outcome.at_ms for outcome in log.take(9)] == [2, 9]
    log.trim()
    assert (len(log), log.dropped) == (0, 2)


def test_a_log_beyond_its_limit_keeps_erasures() -> None:
    log, erasure = OutcomeLog(waiting_max=3), Outcome("t:u", 4, ERASED)
    log.extend([*(Outcome("t:u", at_ms, "event") for at_ms in range(4)), erasure])
    for _ in range(2):
        log.trim()
    assert (len(log), log.dropped) == (4, 1)
    assert log.take(9)[-1] == erasure


@pytest.mark.parametrize(
    ("client_ms", "read_ms", "skew_ms"),
    [(1000, 0, 0), (1040, 40, 0), (1100, 100, 0), (1101, 100, 1), (61_100, 100, 60_000), (999, 100, -1), (1, 100, -999)],
)
def test_a_clients_time_between_send_and_arrival_is_right_and_any_other_proves_a_skew(client_ms: int, read_ms: int, skew_ms: int) -> None:
    assert client_times(1000, client_ms, 1100) == (read_ms, skew_ms)


@given(times, times, times)
def test_no_time_to_read_is_negative_or_longer_than_the_round_trip(sent_ms: int, client_ms: int, later_ms: int) -> None:
    read_ms, skew_ms = client_times(sent_ms, client_ms, sent_ms + later_ms)
    assert 0 <= read_ms <= later_ms
    assert (skew_ms == 0) == (sent_ms <= client_ms <= sent_ms + later_ms)


def test_the_type_of_a_message_is_found_behind_an_actor_with_one() -> None:
    assert type_of(b'"id":"a","actor":{"type":"robot"},"type":"post.liked","data":{"type":"x"}') == "post.liked"
    assert type_of(b"nonsense") == ""
