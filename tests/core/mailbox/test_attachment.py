"""What one connection was sent: what is unanswered, when it goes out again, and when its tries are used up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.mailbox.attachment import Attachment
from engine.core.mailbox.retry import RetryPolicy
from engine.core.model.envelope import Envelope
from engine.core.model.message import Message
from engine.core.wire.records import POLL, SSE, WEBSOCKET

POLICY = RetryPolicy(rtt_initial_ms=250, factor=1.8, first_ms=100, cap_ms=2000, tries=3)
FIRST_WAIT_MS = 450


def message(seq: int, expires_ms: int = 10**6, size: int = 10) -> Message:
    return Message(seq, Envelope(f"m{seq}", b"", 1, True, b"x" * size), expires_ms, 0)


def sent(*messages: Message, kind: int = WEBSOCKET) -> tuple[Attachment, dict[int, Message]]:
    connection = Attachment(("edge-0/1", 1), kind, "s", "d", 0, 0)
    for one in messages:
        connection.fly(one, 0)
    return connection, {one.seq: one for one in messages}


def exhausted(*messages: Message) -> tuple[Attachment, dict[int, Message]]:
    connection, hot = sent(*messages)
    for now_ms in (3000, 6000, 9000):
        connection.overdue(hot, now_ms, POLICY)
    assert connection.exhausted.keys() == hot.keys()
    return connection, hot


def test_a_message_goes_out_again_when_its_wait_is_over_and_not_a_moment_earlier() -> None:
    connection, hot = sent(message(1))
    due_ms = connection.next_retry_ms(0, POLICY)
    assert due_ms == FIRST_WAIT_MS + 1
    assert connection.overdue(hot, FIRST_WAIT_MS - 1, POLICY) == []
    assert connection.overdue(hot, due_ms, POLICY) == [(1, 2, hot[1].envelope.body)]
    assert connection.overdue(hot, due_ms, POLICY) == [], "the second wait has begun"
    assert connection.next_retry_ms(due_ms, POLICY) > due_ms + 2 * FIRST_WAIT_MS


def test_an_expired_message_does_not_go_out_again() -> None:
    connection, hot = sent(message(1, expires_ms=2000), message(2))
    assert [seq for seq, _, _ in connection.overdue(hot, 2000, POLICY)] == [2]
    assert (list(connection.flight), list(connection.exhausted)) == ([2], [1]), "it takes part in no more retries"


def test_attempts_on_earlier_connections_count_into_the_number_of_the_attempt() -> None:
    late = message(1)
    late.attempts = 4
    connection, hot = sent(late)
    assert [(seq, attempt) for seq, attempt, _ in connection.overdue(hot, 1000, POLICY)] == [(1, 6)]


@pytest.mark.parametrize("kind", [SSE, POLL])
def test_nothing_goes_out_again_where_the_transport_repeats_nothing(kind: int) -> None:
    connection, hot = sent(message(1), kind=kind)
    assert connection.next_retry_ms(0, POLICY) == 0
    assert connection.overdue(hot, 10**5, POLICY) == []
    assert not connection.exhausted


def test_a_message_that_used_up_its_tries_leaves_the_flight_alone() -> None:
    connection, hot = sent(message(1), message(2))
    connection.overdue(hot, 3000, POLICY)
    connection.overdue(hot, 6000, POLICY)
    connection.fly(late := message(3), 8999)
    hot[3] = late
    assert connection.overdue(hot, 9000, POLICY) == []
    assert (list(connection.flight), connection.flight_bytes, connection.first_sent_ms) == ([3], 10, {})
    assert {seq: one.attempts for seq, one in hot.items()} == {1: 3, 2: 3, 3: 0}
    assert connection.exhausted.keys() == {1, 2}
    assert [seq for seq, _, _ in connection.overdue(hot, 19_000, POLICY)] == [3], "the others go on"


def test_an_exhausted_message_is_none_any_more_when_it_is_settled_or_has_expired() -> None:
    connection, hot = exhausted(message(1), message(2, expires_ms=20_000))
    assert connection.silent
    assert connection.land(hot[1]) is None, "it is not in flight"
    connection.forget_expired(19_999)
    assert connection.exhausted == {2: (20_000, "m2")}
    connection.forget_expired(20_000)
    assert not connection.exhausted
    assert not connection.silent


def test_a_repeated_message_is_no_measurement_but_makes_the_next_wait_longer() -> None:
    connection, hot = sent(message(1), message(2))
    connection.overdue(hot, 1000, POLICY)
    path_ms = connection.path.rtt_ms(1000)
    connection.measure(1, 1001, POLICY)
    assert connection.rtt_ms == POLICY.backed_off(0, 2), "the 1001 ms may be the answer to either sending (Karn)"
    assert connection.path.rtt_ms(1001) == path_ms


def test_the_answer_to_a_message_sent_once_is_a_round_trip_of_the_connection_and_its_path() -> None:
    connection, _ = sent(message(1))
    connection.measure(1, 90, POLICY)
    assert connection.rtt_ms == POLICY.smooth(0, 90) == 230
    assert connection.path.rtt_ms(90) == pytest.approx(90 / 8)
    connection.measure(7, 500, POLICY)
    assert connection.rtt_ms == 230, "what is not in flight measures nothing"


def test_a_first_timeout_is_a_sample_of_the_path_and_a_later_one_is_none() -> None:
    connection, hot = sent(message(1))
    connection.overdue(hot, 800, POLICY)
    assert connection.path.rtt_ms(800) == pytest.approx(100)
    connection.overdue(hot, 3000, POLICY)
    assert connection.path.rtt_ms(3000) == pytest.approx(100)


def test_the_first_sending_of_a_repeated_message_is_remembered_until_it_lands() -> None:
    connection, hot = sent(message(1))
    connection.overdue(hot, 1000, POLICY)
    connection.overdue(hot, 3000, POLICY)
    assert connection.first_sent_ms == {1: 0}
    assert connection.land(hot[1]) == 0
    assert connection.first_sent_ms == {}


def test_what_a_transport_has_written_makes_room_and_what_is_behind_it_stays_in_flight() -> None:
    connection, hot = sent(message(1), message(2), message(3), kind=SSE)
    connection.written(hot, 2)
    assert (list(connection.flight), connection.flight_bytes) == ([3], 10)
    assert [hot[seq].attempts for seq in (1, 2, 3)] == [1, 1, 0]


@given(st.lists(st.tuples(st.sampled_from(["land", "written", "overdue", "spend"]), st.integers(1, 8)), max_size=12))
def test_the_bytes_in_flight_are_those_of_the_messages_in_flight(acts: list[tuple[str, int]]) -> None:
    connection, hot = sent(*(message(seq, size=seq) for seq in range(1, 9)))
    now_ms = 0
    for act, seq in acts:
        flew = set(connection.flight)
        if act == "land":
            assert (connection.land(hot[seq]) is not None) == (seq in flew)
        elif act == "written":
            connection.written(hot, seq)
        elif act == "spend":
            connection.spend(hot)
        else:
            connection.overdue(hot, now_ms := now_ms + 3000, POLICY)
        assert connection.flight_bytes == sum(connection.flight)
        assert list(connection.flight) == sorted(connection.flight)
        assert connection.first_sent_ms.keys() <= connection.flight.keys()
