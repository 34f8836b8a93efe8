"""The receiving client's decisions, without a socket."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.client import protocol
from engine.client.frames import Message
from engine.errors import Forbidden, Refused, TooManyConnections, Unauthorized

NOW = 1_700_000_000_000


def welcome(epoch: str = "7", seq: int = 0, resumed: str = "new", from_: int = 1, **more: Any) -> str:
    return json.dumps(
        {"type": "welcome", "connection": "c1", "user": "u1", "epoch": epoch, "seq": seq, "resumed": resumed, "from": from_, **more}
    )


def message(seq: int, epoch: str = "7", id_: str | None = None) -> dict[str, Any]:
    return {"seq": seq, "id": id_ or f"m{seq}", "event_id": f"{epoch}-{seq}", "type": "t", "priority": "normal", "ts": 1, "attempt": 1}


def messages(*seqs: int, epoch: str = "7") -> str:
    return json.dumps({"type": "messages", "messages": [message(seq, epoch) for seq in seqs]})


def open_session(cursor: str | None = None, **frame: Any) -> protocol.Session:
    session = protocol.Session(cursor)
    session.opened(NOW, session.cursor)
    session.receive(welcome(**frame), NOW)
    session.events()
    return session


def handed(session: protocol.Session) -> list[Message]:
    taken = []
    while (one := session.next_message()) is not None:
        taken.append(one)
    return taken


def session_with(*seqs: int) -> protocol.Session:
    """An open session that has received these messages."""
    session = open_session()
    session.receive(messages(*seqs), NOW)
    return session


def sent(session: protocol.Session, now: int = NOW) -> list[dict[str, Any]]:
    return [json.loads(frame) for frame in session.data_to_send(now)]


def test_messages_handled_in_order_are_acknowledged_by_one_number() -> None:
    session = session_with(1, 2, 3)
    for one in handed(session):
        session.settle(one, None, NOW)
    assert sent(session) == [{"type": "ack", "seq": 3, "ts": NOW}]
    assert session.cursor == "7-3"
    assert sent(session) == []


def test_the_cursor_never_passes_a_message_that_is_still_being_handled() -> None:
    session = session_with(1, 2, 3)
    first, second, third = handed(session)
    session.settle(third, None, NOW)
    session.settle(second, None, NOW)
    assert session.cursor is None
    assert sent(session) == [{"type": "ack", "ids": ["m3", "m2"], "ts": NOW}]
    session.settle(first, None, NOW)
    assert session.cursor == "7-3"
    assert sent(session) == [{"type": "ack", "seq": 3, "ts": NOW}]


def test_numbers_that_never_arrive_are_not_waited_for() -> None:
    session = session_with(5, 9)
    for one in handed(session):
        session.settle(one, None, NOW)
    assert sent(session) == [{"type": "ack", "seq": 9, "ts": NOW}]


def test_a_repeat_of_what_is_being_handled_is_ignored() -> None:
    session = session_with(1)
    session.receive(messages(1), NOW)
    assert len(handed(session)) == 1
    assert sent(session) == []


def test_a_repeat_of_what_was_handled_is_dropped_and_acknowledged_again() -> None:
    session = session_with(1, 2)
    for one in handed(session):
        session.settle(one, None, NOW)
    sent(session)
    session.receive(messages(2), NOW + 1)
    assert handed(session) == []
    assert sent(session, NOW + 1) == [{"type": "ack", "ids": ["m2"], "ts": NOW + 1}]


def named(seq: int, id_: str, epoch: str = "7") -> str:
    return json.dumps({"type": "messages", "messages": [message(seq, epoch, id_)]})


def test_an_id_that_comes_under_another_number_is_another_message() -> None:
    session = open_session()
    session.receive(named(1, "k"), NOW)
    session.settle(handed(session)[0], None, NOW)
    sent(session)
    session.receive(named(1, "k"), NOW + 1)
    assert handed(session) == []
    session.receive(named(2, "k"), NOW + 1)
    assert [one.seq for one in handed(session)] == [2], "the engine may have accepted the first a day before it was settled"
    assert sent(session, NOW + 1) == [{"type": "ack", "ids": ["k"], "ts": NOW + 1}]


def test_an_id_of_another_epoch_is_a_repeat_for_a_day() -> None:
    session = open_session()
    session.receive(named(1, "k"), NOW)
    session.settle(handed(session)[0], None, NOW)
    session.opened(NOW, session.cursor)
    session.receive(welcome(epoch="8", resumed="gap"), NOW)
    session.receive(named(2, "k", "8"), NOW + protocol.SETTLED_IDS_MS - 1)
    assert handed(session) == []
    session.receive(named(3, "k", "8"), NOW + protocol.SETTLED_IDS_MS)
    assert [one.seq for one in handed(session)] == [3]


def nacked(*ids: str) -> str:
    return json.dumps({"type": "nacked", "ids": ids})


@pytest.mark.parametrize("transport", protocol.TRANSPORTS)
def test_a_refused_message_holds_the_cursor_until_the_refusal_is_confirmed(transport: protocol.Transport) -> None:
    session = protocol.Session()
    session.opened(NOW, None, transport)
    session.receive(welcome(), NOW)
    session.receive(messages(1, 2), NOW)
    first, second = handed(session)
    session.settle(first, "cannot", NOW)
    session.settle(first, "cannot, again", NOW)
    session.settle(second, None, NOW)
    assert session.cursor is None
    assert sent(session) == [
        {"type": "ack", "ids": ["m2"], "ts": NOW},
        {"type": "nack", "ids": ["m1"], "reason": "cannot"},
    ]
    assert session.cursor is None
    session.receive(nacked("m1", "of somebody else"), NOW)
    assert session.cursor == "7-2"
    assert sent(session) == [{"type": "ack", "seq": 2, "ts": NOW, **({} if transport == "websocket" else {"epoch": "7"})}]


@pytest.mark.parametrize("confirmed", [False, True])
def test_a_refused_message_that_comes_again_is_refused_again(confirmed: bool) -> None:
    session = session_with(1)
    session.settle(handed(session)[0], "cannot", NOW)
    sent(session)
    if confirmed:
        session.receive(nacked("m1"), NOW)
        sent(session)
    session.receive(messages(1), NOW)
    assert handed(session) == []
    assert sent(session) == [{"type": "nack", "ids": ["m1"], "reason": "cannot"}]


def test_a_refusal_that_its_connection_may_have_lost_is_said_again_on_the_next_one_before_the_cursor_passes_it() -> None:
    session = session_with(1, 2, 3)
    first, second, third = handed(session)
    session.settle(first, None, NOW)
    session.settle(second, "cannot", NOW)
    sent(session)
    session.closed(1006, "", NOW)
    session.settle(third, None, NOW)
    assert session.cursor == "7-1"
    session.opened(NOW, session.cursor)
    session.receive(welcome(resumed="ok", seq=3, from_=2), NOW)
    assert sent(session) == [{"type": "ack", "ids": ["m3"], "ts": NOW}, {"type": "nack", "ids": ["m2"], "reason": "cannot"}]
    session.receive(nacked("m2"), NOW)
    assert sent(session) == [{"type": "ack", "seq": 3, "ts": NOW}]
    session.closed(1006, "", NOW)
    assert session.cursor == "7-3"
    session.opened(NOW, session.cursor)
    session.receive(welcome(resumed="ok", seq=3, from_=4), NOW)
    assert sent(session) == []


def test_a_refusal_is_kept_over_a_change_of_the_epoch_and_made_again_under_the_new_number() -> None:
    session = session_with(5)
    session.settle(handed(session)[0], "cannot", NOW)
    session.closed(1006, "", NOW)
    session.opened(NOW)
    session.receive(welcome(epoch="8", resumed="gap"), NOW)
    assert sent(session) == [{"type": "nack", "ids": ["m5"], "reason": "cannot"}]
    session.receive(json.dumps({"type": "messages", "messages": [message(1, "8", "m5")]}), NOW)
    assert handed(session) == []
    assert sent(session) == [{"type": "nack", "ids": ["m5"], "reason": "cannot"}]


def test_what_was_refused_here_and_handled_on_another_device_is_refused_no_more() -> None:
    session = session_with(1)
    session.settle(handed(session)[0], "cannot", NOW)
    session.receive(json.dumps({"type": "revoke", "ids": ["m1"]}), NOW)
    assert sent(session) == [{"type": "ack", "seq": 1, "ts": NOW}]


def test_an_acknowledgement_behind_a_refusal_changes_nothing() -> None:
    session = session_with(1)
    (one,) = handed(session)
    session.settle(one, "cannot", NOW)
    session.settle(one, None, NOW)
    assert sent(session) == [{"type": "nack", "ids": ["m1"], "reason": "cannot"}]


def test_what_is_settled_while_disconnected_is_said_by_the_cursor_and_by_id_after_the_welcome() -> None:
    session = session_with(1, 2, 3)
    first, _, third = handed(session)
    session.closed(1006, "", NOW)
    session.settle(first, None, NOW)
    session.settle(third, None, NOW)
    assert sent(session) == []
    assert session.cursor == "7-1"
    session.opened(NOW, session.cursor)
    assert sent(session) == []
    session.receive(welcome(resumed="ok", from_=2), NOW)
    assert sent(session) == [{"type": "ack", "ids": ["m3"], "ts": NOW}]
    session.receive(messages(2, 3, 4), NOW)
    assert [one.seq for one in handed(session)] == [4]


def test_what_is_settled_during_the_handshake_is_acknowledged_after_it() -> None:
    session = session_with(1, 2)
    first, second = handed(session)
    session.settle(first, None, NOW)
    session.closed(1006, "", NOW)
    presented = session.cursor
    session.settle(second, None, NOW)
    session.opened(NOW, presented)
    session.receive(welcome(resumed="ok", from_=2), NOW)
    assert sent(session) == [{"type": "ack", "seq": 2, "ts": NOW}]


def test_long_lists_of_ids_are_split_so_that_no_frame_is_too_large() -> None:
    session = open_session()
    count = 2 * protocol.IDS_PER_FRAME + 1
    session.receive(messages(*range(1, count + 2)), NOW)
    for one in handed(session)[1:]:
        session.settle(one, None, NOW)
    assert [len(frame["ids"]) for frame in sent(session)] == [protocol.IDS_PER_FRAME, protocol.IDS_PER_FRAME, 1]


def test_a_revoked_message_is_not_delivered_and_does_not_hold_the_cursor() -> None:
    session = session_with(1, 2, 3)
    first = session.next_message()
    assert first is not None
    session.receive('{"type":"revoke","ids":["m1","m2","unknown"]}', NOW)
    assert session.events() == [protocol.Revoked(["m1", "m2", "unknown"])]
    assert [one.seq for one in handed(session)] == [3]
    assert session.cursor == "7-2"
    session.settle(first, None, NOW)
    assert sent(session) == [{"type": "ack", "seq": 2, "ts": NOW}]


def test_messages_that_another_device_handled_are_revoked_on_return() -> None:
    session = session_with(1, 2, 3, 4)
    first, second, *_ = [session.next_message() for _ in range(2)]
    assert first is not None
    assert second is not None
    session.settle(second, "no", NOW)
    session.closed(1006, "lost", NOW)
    session.events()
    session.opened(NOW, session.cursor)
    session.receive(welcome(seq=4, resumed="ok", from_=4), NOW)
    assert [event for event in session.events() if isinstance(event, protocol.Revoked)] == [protocol.Revoked(["m1", "m3"])]
    assert [one.seq for one in handed(session)] == [4]
    assert session.cursor == "7-1", "the refusal is not confirmed"
    session.settle(first, None, NOW)
    assert {"type": "nack", "ids": ["m2"], "reason": "no"} in sent(session)
    session.receive(nacked("m2"), NOW)
    assert session.cursor == "7-3"


def test_what_this_client_has_settled_itself_is_not_told_when_it_is_revoked() -> None:
    session = session_with(1, 2, 3)
    first, second, _ = handed(session)
    session.settle(first, None, NOW)
    session.settle(second, None, NOW)
    session.receive(json.dumps({"type": "revoke", "ids": ["m1"]}), NOW)
    assert session.events() == []
    session.receive(json.dumps({"type": "revoke", "ids": ["m2", "m3", "m4"]}), NOW)
    session.receive(json.dumps({"type": "revoke", "ids": ["m3"]}), NOW)
    assert session.events() == [protocol.Revoked(["m3", "m4"])]
    assert session.cursor == "7-3"


def test_gaps_drains_and_errors_are_told_in_order() -> None:
    session = open_session()
    session.receive('{"type":"gap","from":3,"to":9}', NOW)
    session.receive('{"type":"drain","after_ms":4200}', NOW)
    session.receive('{"type":"error","code":"x","detail":"y"}', NOW)
    assert session.events() == [protocol.Gap(3, 9), protocol.Draining(4200), protocol.ServerError("x", "y")]


def test_gap_moves_the_cursor_to_the_first_open_message_or_its_end() -> None:
    session = session_with(1)
    session.receive('{"type":"gap","from":2,"to":9}', NOW)
    assert session.cursor is None
    session.settle(handed(session)[0], None, NOW)
    assert session.cursor == "7-9"
    session.receive('{"type":"gap","from":10,"to":12}', NOW)
    assert session.cursor == "7-12"
    assert sent(session) == [{"type": "ack", "seq": 12, "ts": NOW}]


def test_unknown_cursor_is_replaced_by_the_one_where_delivery_begins() -> None:
    session = open_session(cursor="6-900", resumed="gap", seq=50, from_=41)
    assert session.cursor == "7-40"
    assert sent(session) == []
    session.receive(messages(41), NOW)
    assert [one.seq for one in handed(session)] == [41]


def test_unknown_types_and_members_are_ignored_and_nonsense_is_told() -> None:
    session = open_session()
    session.receive('{"type":"party","at":"eight"}', NOW)
    session.receive('{"type":"pong","ts":1,"mood":"good"}', NOW)
    assert session.events() == []
    deep = b'{"type":"error","code":' + b"[" * 5000 + b"]" * 5000 + b"}"
    for nonsense in ("", "[]", "{", '{"type":"messages","messages":[{"seq":"one"}]}', b"\xff", b'{"type":"error","code":"\xff"}', deep):
        session.receive(nonsense, NOW)
        assert [type(event) for event in session.events()] == [protocol.ServerError]


def test_after_a_gap_smaller_numbers_are_new_messages() -> None:
    session = open_session(cursor="7-900", resumed="gap", seq=50, from_=1)
    session.receive(messages(1), NOW)
    session.settle(handed(session)[0], None, NOW)
    assert session.cursor == "7-1"
    assert sent(session) == [{"type": "ack", "seq": 1, "ts": NOW}]


def test_in_another_epoch_old_messages_are_acknowledged_by_id_only() -> None:
    session = session_with(41, 42)
    old = handed(session)
    session.closed(1006, "", NOW)
    session.opened(NOW)
    session.receive(welcome(epoch="8", resumed="gap"), NOW)
    session.receive(json.dumps({"type": "messages", "messages": [message(41, "8", "fresh")]}), NOW)
    for one in old:
        session.settle(one, None, NOW)
    assert sent(session) == [{"type": "ack", "ids": ["m41", "m42"], "ts": NOW}]
    assert session.cursor == "8-0"
    session.settle(handed(session)[0], None, NOW)
    assert session.cursor == "8-41"
    assert sent(session) == [{"type": "ack", "seq": 41, "ts": NOW}]


def test_in_another_epoch_what_is_unsettled_holds_the_cursor() -> None:
    session = session_with(41)
    (handling,) = handed(session)
    session.closed(1006, "", NOW)
    session.opened(NOW)
    session.receive(welcome(epoch="8", resumed="gap"), NOW)
    session.receive(json.dumps({"type": "messages", "messages": [message(1, "8", "m41"), message(2, "8", "fresh")]}), NOW)
    (fresh,) = handed(session)
    session.settle(fresh, None, NOW)
    assert session.cursor == "8-0", "it would acknowledge the message that is being handled"
    assert sent(session) == [{"type": "ack", "ids": ["fresh"], "ts": NOW}]
    session.settle(handling, None, NOW)
    assert session.cursor == "8-2"
    assert sent(session) == [{"type": "ack", "seq": 2, "ts": NOW}]


def test_in_another_epoch_what_is_refused_holds_the_cursor() -> None:
    session = session_with(41)
    session.settle(handed(session)[0], "cannot", NOW)
    session.closed(1006, "", NOW)
    session.opened(NOW)
    session.receive(welcome(epoch="8", resumed="gap"), NOW)
    session.receive(json.dumps({"type": "messages", "messages": [message(1, "8", "m41"), message(2, "8", "fresh")]}), NOW)
    session.settle(handed(session)[0], None, NOW)
    assert session.cursor == "8-0"
    assert all("seq" not in frame for frame in sent(session)), "it would acknowledge the message before the dead letter is durable"
    session.receive(nacked("m41"), NOW)
    assert session.cursor == "8-2"


def test_numbers_up_to_the_cursor_are_dropped_and_acknowledged() -> None:
    session = open_session(cursor="7-10", resumed="ok", seq=12, from_=11)
    session.receive(messages(9, 10, 11), NOW)
    assert [one.seq for one in handed(session)] == [11]
    assert sent(session) == [{"type": "ack", "ids": ["m9", "m10"], "ts": NOW}]


@pytest.mark.parametrize(("window", "unsettled_max"), [(256, protocol.UNSETTLED_MAX), (512, 2 * protocol.UNSETTLED_MAX)])
def test_a_server_that_ignores_the_window_is_left_before_memory_grows(window: int, unsettled_max: int) -> None:
    session = open_session(window=window)
    session.receive(messages(*range(1, unsettled_max + 2)), NOW)
    assert session.closing is not None
    assert len(handed(session)) == unsettled_max
    session.receive(messages(unsettled_max + 5), NOW)
    assert handed(session) == []


# -- time --------------------------------------------------------------------------------------------------------------
def test_it_pings_at_the_interval_the_server_asks_for() -> None:
    session = open_session(heartbeat_ms=1000, timeout_ms=2500)
    assert session.deadline_ms == NOW + 1000
    session.tick(NOW + 1000)
    assert sent(session, NOW + 1000) == [{"type": "ping", "ts": NOW + 1000}]
    assert session.deadline_ms == NOW + 2000


def test_a_silent_server_is_given_up_after_its_timeout() -> None:
    session = open_session(heartbeat_ms=1000, timeout_ms=2500)
    session.receive('{"type":"pong"}', NOW + 1000)
    session.tick(NOW + 3499)
    assert session.closing is None
    session.tick(NOW + 3500)
    assert session.closing == "nothing from the server for 2500 ms"


def test_a_server_that_never_says_welcome_is_given_up() -> None:
    session = protocol.Session()
    session.opened(NOW)
    assert session.deadline_ms == NOW + protocol.WELCOME_TIMEOUT_MS
    session.tick(NOW + protocol.WELCOME_TIMEOUT_MS)
    assert session.closing is not None


def test_reconnecting_waits_1_2_5_10_seconds_with_jitter() -> None:
    session = protocol.Session()
    waits = []
    for random in (0.5, 0.0, 0.999999, 0.5, 0.5):
        session.unreachable("refused")
        waits.append(session.retry_in_ms(random, NOW))
    assert waits == [1000, 1400, 6500, 10_000, 10_000]


def test_the_server_may_change_the_delays() -> None:
    session = open_session(reconnect={"delays_ms": [50], "jitter": 0})
    session.closed(1006, "", NOW)
    assert [session.retry_in_ms(0.9, NOW) for _ in range(2)] == [50, 50]


def test_a_connection_that_stood_begins_again_with_the_first_delay_and_a_flapping_one_does_not() -> None:
    session = open_session()
    session.closed(1006, "", NOW + 10)
    assert session.retry_in_ms(0.5, NOW) == 1000
    session.opened(NOW)
    session.receive(welcome(), NOW)
    session.closed(1006, "", NOW + 10)
    assert session.retry_in_ms(0.5, NOW) == 2000
    session.opened(NOW)
    session.receive(welcome(), NOW)
    session.closed(1006, "", NOW + 10_000)
    assert session.retry_in_ms(0.5, NOW) == 1000


def test_a_drained_client_reconnects_when_the_server_said() -> None:
    session = open_session()
    session.receive('{"type":"drain","after_ms":4200}', NOW)
    session.closed(1012, "restart", NOW + 200)
    assert session.retry_in_ms(0.9, NOW + 200) == 4000
    session.unreachable("refused")
    assert session.retry_in_ms(0.5, NOW + 4200) == 1000


def test_a_draining_server_that_does_not_close_is_left_in_time() -> None:
    session = open_session()
    session.receive('{"type":"drain","after_ms":500}', NOW)
    session.tick(NOW + session.deadline_ms - NOW)
    assert session.closing == "the server is draining"
    session.closed(1006, "", NOW + 500)
    assert session.retry_in_ms(0.5, NOW + 500) == 0


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_kept_and_spread(status: int) -> None:
    session = protocol.Session()
    session.refused(status, "later", 7.0)
    assert session.failure is None
    assert session.retry_in_ms(0.0, NOW) == 7000
    session.refused(status, "later", None)
    assert session.retry_in_ms(0.5, NOW) == 2000
    session.refused(status, "a proxy's", 0.0)
    assert session.retry_in_ms(0.5, NOW) == 5000, "a refusal without a delay of its own is no reason to hurry"


@pytest.mark.parametrize(("code", "kind"), [(4403, Forbidden), (4409, TooManyConnections)])
def test_close_codes_that_waiting_does_not_cure_end_it(code: int, kind: type[Exception]) -> None:
    session = open_session()
    session.closed(code, "no", NOW)
    assert isinstance(session.failure, kind)


@pytest.mark.parametrize("code", [1000, 1001, 1006, 1012, 4408, 4413, 4429])
def test_other_close_codes_lead_to_another_attempt(code: int) -> None:
    session = open_session()
    session.closed(code, "bye", NOW)
    assert session.failure is None
    assert session.events() == [protocol.Disconnected(code, "bye")]


@pytest.mark.parametrize(("status", "kind"), [(403, Forbidden), (404, Refused), (400, Refused)])
def test_handshake_answers_that_waiting_does_not_cure_end_it(status: int, kind: type[Exception]) -> None:
    session = protocol.Session(renewable=True)
    session.refused(status, "no")
    assert isinstance(session.failure, kind)


def test_a_rejected_token_is_replaced_once_before_giving_up() -> None:
    session = protocol.Session(renewable=True)
    session.refused(401, "expired")
    assert session.failure is None
    assert session.token_rejected
    assert session.retry_in_ms(0.5, NOW) == 0
    session.refused(401, "expired")
    assert isinstance(session.failure, Unauthorized)


def test_a_token_that_was_rejected_and_cannot_be_replaced_is_asked_for_at_once_and_then_with_delays() -> None:
    session = protocol.Session(renewable=True)
    session.refused(401, "expired")
    delays = []
    for _ in range(4):
        delays.append(session.retry_in_ms(0.5, NOW))
        session.unreachable("no fresh token")
    assert delays == [0, 1000, 2000, 5000]
    assert session.token_rejected


def test_an_expired_token_is_replaced_every_time_it_expires() -> None:
    session = protocol.Session(renewable=True)
    for _ in range(3):
        session.opened(NOW)
        session.receive(welcome(), NOW)
        session.closed(4401, "expired", NOW)
        assert session.failure is None
        assert session.token_rejected


def test_a_fixed_token_is_given_up_at_once() -> None:
    session = open_session()
    session.closed(4401, "expired", NOW)
    assert isinstance(session.failure, Unauthorized)


def test_a_link_that_only_receives_is_acknowledged_by_requests_and_neither_pinged_nor_sent_tokens() -> None:
    session = protocol.Session()
    session.opened(NOW, None, "sse")
    session.receive(welcome(heartbeat_ms=1000, timeout_ms=3000), NOW)
    session.receive(messages(1, 2, 3), NOW)
    first, second, third = handed(session)
    session.settle(third, None, NOW)
    session.authenticate("abc")
    assert session.deadline_ms == NOW + 3000
    session.heard(NOW + 2000)
    assert session.deadline_ms == NOW + 5000
    assert sent(session) == [{"type": "ack", "ids": ["m3"], "ts": NOW}]
    session.settle(first, None, NOW)
    session.settle(second, None, NOW)
    assert sent(session) == [{"type": "ack", "seq": 3, "epoch": "7", "ts": NOW}]


@pytest.mark.parametrize("connected", [False, True])
def test_a_refusal_that_was_not_confirmed_is_sent_over_the_next_transport(connected: bool) -> None:
    session = session_with(1, 2)
    first, second = handed(session)
    if not connected:
        session.closed(1006, "", NOW)
    session.settle(first, "no", NOW)
    sent(session)
    session.opened(NOW, session.cursor, "sse")
    session.receive(welcome(), NOW)
    session.settle(second, None, NOW)
    assert session.cursor is None
    assert {"type": "nack", "ids": ["m1"], "reason": "no"} in sent(session)


@pytest.mark.parametrize("transport", ["sse", "poll"])
def test_what_a_replaced_connection_may_not_have_sent_is_acknowledged_on_the_next_one(transport: protocol.Transport) -> None:
    session = protocol.Session()
    session.opened(NOW, None, transport)
    session.receive(welcome(), NOW)
    session.receive(messages(1, 2), NOW)
    presented = session.cursor
    for one in handed(session):
        session.settle(one, None, NOW)
    assert sent(session)
    session.opened(NOW, presented, "websocket")
    session.receive(welcome(), NOW)
    assert sent(session) == [{"type": "ack", "seq": 2, "ts": NOW}]
    assert [type(event) for event in session.events()] == [protocol.Connected, protocol.Connected]


def test_a_status_that_ends_the_client_does_not_while_another_transport_is_left() -> None:
    session = protocol.Session()
    session.refused(404, "no such path", elsewhere=True)
    assert session.failure is None
    session.refused(404, "no such path")
    assert isinstance(session.failure, Refused)


def test_a_fresh_token_goes_over_the_standing_connection() -> None:
    session = open_session()
    session.authenticate("abc")
    assert sent(session) == [{"type": "auth", "token": "abc"}]


def test_the_welcome_is_told() -> None:
    session = protocol.Session()
    session.opened(NOW)
    session.receive(welcome(seq=5, from_=4), NOW)
    assert session.events() == [protocol.Connected("c1", "u1", "7", 5, "new", 4)]


@pytest.mark.parametrize("text", ["", "7", "-5", "7-", "7-x", "7--", "7-٣"])
def test_a_malformed_cursor_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        protocol.split_cursor(text)


@given(st.text(min_size=1), st.integers(0, 2**63))
def test_every_event_id_splits_into_what_it_was_made_of(epoch: str, seq: int) -> None:
    assert protocol.split_cursor(f"{epoch}-{seq}") == (epoch, seq)


class AgainstAServer(RuleBasedStateMachine):
    """A server with the rules of PROTOCOL.md, a network that loses what is under way, an application that settles in any order.

    Connections are of any transport, and one may replace another that is open.
    """

    @initialize()
    def begin(self) -> None:
        self.session = protocol.Session()
        self.now = NOW
        self.published = 0
        self.pending: dict[int, str] = {}  # the server's: not acknowledged
        self.holding: list[Message] = []
        self.delivered: list[str] = []
        self.settled: set[str] = set()
        self.refused: set[str] = set()
        self.dead: set[str] = set()
        self.to_confirm: list[str] = []  # refusals heard on this connection
        self.connected = False
        self.presented: list[str | None] = []

    @precondition(lambda self: not self.presented)
    @rule()
    def begin_a_handshake(self) -> None:
        self._present()

    def _present(self) -> None:
        self.presented.append(self.session.cursor)

    @rule(transport=st.sampled_from(protocol.TRANSPORTS))
    def connect(self, transport: protocol.Transport) -> None:
        if not self.connected:
            self._connect(transport)

    @precondition(lambda self: self.connected and self.presented)
    @rule(transport=st.sampled_from(protocol.TRANSPORTS))
    def replace_the_connection(self, transport: protocol.Transport) -> None:
        self.to_confirm.clear()
        self._connect(transport)

    def _connect(self, transport: protocol.Transport = "websocket") -> None:
        if not self.presented:
            self._present()
        cursor = self.presented.pop()
        self._acknowledge_up_to(protocol.split_cursor(cursor)[1] if cursor else 0)
        self.session.opened(self.now, cursor, transport)
        self.session.receive(welcome(resumed="ok" if cursor else "new", seq=self.published, from_=min(self.pending, default=1)), self.now)
        self.connected = True
        self._send(sorted(self.pending))

    @rule()
    def lose_the_connection(self) -> None:
        self._lose()

    def _lose(self) -> None:
        if self.connected:
            self.connected = False
            self.to_confirm.clear()
            self.session.closed(1006, "", self.now)

    @rule(count=st.integers(1, 5))
    def publish(self, count: int) -> None:
        fresh = range(self.published + 1, self.published + count + 1)
        self.published += count
        self.pending.update({seq: f"m{seq}" for seq in fresh})
        if self.connected:
            self._send(list(fresh))

    @precondition(lambda self: self.connected and self.pending)
    @rule()
    def retry_the_oldest(self) -> None:
        self._send([min(self.pending)])

    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        while (one := self.session.next_message()) is not None:
            self.holding.append(one)
            self.delivered.append(one.id)
        if self.holding:
            one = self.holding.pop(data.draw(st.integers(0, len(self.holding) - 1)))
            reason = data.draw(st.sampled_from([None, None, "no"]))
            self.session.settle(one, reason, self.now)
            (self.settled if reason is None else self.refused).add(one.id)

    @rule(lost=st.booleans())
    def transmit(self, lost: bool) -> None:
        self._transmit(lost)

    def _transmit(self, lost: bool) -> None:
        frames = sent(self.session, self.now)
        if not self.connected:
            assert not frames
        if lost and self.connected:
            self._lose()
            return
        for frame in frames:
            if frame["type"] == "nack":
                self.dead |= set(frame["ids"]) & set(self.pending.values())
                self.to_confirm += frame["ids"]
            if "seq" in frame:
                self._acknowledge_up_to(frame["seq"])
            for id_ in frame.get("ids", ()):
                self.pending.pop(int(id_[1:]), None)

    @precondition(lambda self: self.to_confirm)
    @rule()
    def confirm(self) -> None:
        ids, self.to_confirm = self.to_confirm, []
        self.session.receive(nacked(*ids), self.now)

    def _send(self, seqs: list[int]) -> None:
        self.now += 1
        self.session.receive(messages(*seqs), self.now)

    def _acknowledge_up_to(self, seq: int) -> None:
        for number in [number for number in self.pending if number <= seq]:
            id_ = self.pending.pop(number)
            assert id_ in self.settled | self.refused, f"{id_} was acknowledged before the application had settled it"

    @invariant()
    def nothing_is_delivered_twice(self) -> None:
        assert len(self.delivered) == len(set(self.delivered))

    @invariant()
    def nothing_is_acknowledged_that_was_not_settled(self) -> None:
        gone = {f"m{seq}" for seq in range(1, self.published + 1)} - set(self.pending.values())
        assert gone <= self.settled | self.refused

    def teardown(self) -> None:
        """Once the network holds, everything is delivered in order, settled, and known to be by the server."""
        if not hasattr(self, "session"):
            return
        self._lose()
        self._connect()
        while (one := self.session.next_message()) is not None:
            self.holding.append(one)
            self.delivered.append(one.id)
        for one in self.holding:
            self.settled.add(one.id)
            self.session.settle(one, None, self.now)
        self._transmit(lost=False)
        self.confirm()
        self._transmit(lost=False)
        assert not self.pending
        assert self.dead == self.refused, "what was refused is among the dead letters, and nothing else is"
        assert self.session.cursor == (f"7-{self.published}" if self.delivered else None)
        assert self.delivered == [f"m{seq}" for seq in range(1, self.published + 1)]


TestAgainstAServer = AgainstAServer.TestCase
TestAgainstAServer.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def early(seq: int) -> str:
    copy = {**message(seq), "early": True}
    del copy["event_id"]
    return json.dumps({"type": "early", "messages": [copy]})


def test_early_copy_is_acknowledged_by_id_and_moves_no_cursor() -> None:
    session = session_with(1)
    session.receive(early(9), NOW)
    first, copy = handed(session)
    assert (copy.seq, copy.early) == (9, True)
    session.settle(copy, None, NOW)
    assert [frame.get("ids") for frame in sent(session)] == [["m9"]]
    assert session.cursor is None
    session.settle(first, None, NOW)
    assert session.cursor == "7-1"
    session.receive(messages(*range(2, 10)), NOW)
    assert [one.seq for one in handed(session)] == list(range(2, 9)), "its repeat is dropped"


def test_unsettled_early_copy_holds_the_cursor_at_its_place() -> None:
    session = open_session()
    session.receive(early(2), NOW)
    (copy,) = handed(session)
    session.receive(messages(1, 2, 3), NOW)
    for one in handed(session):
        session.settle(one, None, NOW)
    assert session.cursor == "7-1"
    session.settle(copy, None, NOW)
    assert session.cursor == "7-3"


def test_early_copy_of_a_former_epoch_settles_nothing_of_the_next() -> None:
    session = open_session()
    session.receive(early(2), NOW)
    (copy,) = handed(session)
    session.closed(1006, "", NOW)
    session.opened(NOW, session.cursor)
    session.receive(welcome(epoch="8"), NOW)
    session.receive(messages(1, 2, 3, epoch="8"), NOW)
    handed(session)
    session.settle(copy, None, NOW)
    assert session.cursor is None
