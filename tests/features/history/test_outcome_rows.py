"""Rows of the history: one for each outcome, the same one however often it is made, in the order of time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.core.wire.outcomes import ERASED, AcceptedOutcome, AcknowledgedOutcome, Outcome, SentOutcome
from engine.features.history.outcome_rows import erasures_of, rows_of
from engine.store.outcome_members import first_id

ACCEPTED = AcceptedOutcome("t:alice", 1000, "m1", 7, "post.liked", "touch", 1, "0-x")
SENT = SentOutcome("t:alice", 1000, "m1", 7, 1, "s1", "phone", 0, "edge-0")
ACKNOWLEDGED = AcknowledgedOutcome("t:alice", 1100, "m1", 7, 1000, 1040, "s1", "phone", 0, "edge-0")


def test_a_row_says_what_its_outcome_says() -> None:
    accepted, sent, acknowledged = rows_of([ACCEPTED, SENT, ACKNOWLEDGED], "shard-0/1", 0)
    assert {name: value for name, value in accepted.items() if value is not None and name != "id"} == {
        "at_ms": 1000, "tenant": "t", "user_id": "alice", "event": "accepted", "message": "m1", "seq": 7, "type": "post.liked",
        "category": "touch", "priority": "normal", "scheduled_id": "0-x",
    }  # fmt: skip
    assert (sent["transport"], sent["attempt"], sent["device"], sent["node"]) == ("websocket", 1, "phone", "edge-0")
    times = [acknowledged[name] for name in ("sent_ms", "client_ms", "rtt_ms", "read_ms", "skew_ms")]
    assert times == [1000, 1040, 100, 40, 0]


def test_what_is_journalled_has_one_row_whoever_records_it_and_what_a_process_did_has_one_for_each_number() -> None:
    first = [row["id"] for row in rows_of([ACCEPTED, SENT], "shard-0/1", 0)]
    again = [row["id"] for row in rows_of([ACCEPTED, SENT], "shard-0/1", 0)]
    later = [row["id"] for row in rows_of([SENT, ACCEPTED], "shard-0/2", 0)]
    assert first == again
    assert first[0] == later[1]
    assert first[1] != later[0]
    (number,) = rows_of([SENT], "shard-0/1", 1)
    assert number["id"] == first[1], "the number is that of the outcome, not of its place in a batch"


@given(st.integers(0, 2**47), st.integers(0, 2**47))
def test_ids_are_in_the_order_of_time_and_what_was_accepted_comes_before_it_was_sent(one_ms: int, other_ms: int) -> None:
    first, second = sorted((one_ms, other_ms))
    early, late = (next(rows_of([AcceptedOutcome("t:u", at_ms, "m", 1, "x")], "s", 0))["id"] for at_ms in (first, second))
    assert early <= late
    assert first_id(first) <= early < first_id(first + 1)
    sends = [SentOutcome("t:u", first, "m", 1, attempt, "", "", 0, "") for attempt in range(1, 300)]
    ids = [early, *(row["id"] for row in rows_of(sends, "s", 2**31))]
    assert ids == sorted(ids)


def test_an_erasure_is_no_row() -> None:
    batch = [ACCEPTED, Outcome("t:alice", 1200, ERASED)]
    assert [row["event"] for row in rows_of(batch, "s", 0)] == ["accepted"]
    assert list(erasures_of(batch)) == [("t:alice", 1200)]


def test_a_topic_is_no_user_and_what_no_database_stores_is_replaced() -> None:
    everyone, topic, odd = rows_of(
        [
            Outcome("t:\n", 1, "broadcast", "b"),
            Outcome("t:\nnews", 1, "scheduled", "c"),
            Outcome("t:u", 1, "dead_lettered", reason="a\0b\ud800"),
        ],
        "s",
        0,
    )
    assert [(row["user_id"], row["reason"]) for row in (everyone, topic)] == [("", "everyone"), ("", "topic: news")]
    assert odd["reason"] == "a\N{REPLACEMENT CHARACTER}b?"
