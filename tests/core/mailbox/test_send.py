"""What is sent next on one connection: the fast path for one new message, and what holds a message back."""

from __future__ import annotations

from copy import deepcopy

import pytest

from engine.core.mailbox.mailbox import Mailbox
from engine.core.mailbox.send import Sendable, SendLimits, send
from engine.core.model.constants import HIGH, LOW
from tests.support.mailbox_states import LATER_MS, LIMITS, POLICY, append, connect, first_connection, mailboxes_after_two_events, state_of


def mailbox_with(*bodies: bytes, priority: int = HIGH, expires_ms: int = LATER_MS) -> Mailbox:
    """A connection that was sent nothing yet of these messages."""
    mailbox = Mailbox("t:u", 0)
    connect(mailbox, 0)
    for body in bodies:
        append(mailbox, priority, expires_ms, body)
    return mailbox


def sent(mailbox: Mailbox, *, limits: SendLimits = LIMITS, hold_low: bool = False) -> Sendable | None:
    return send(mailbox, first_connection(mailbox), 20, limits, hold_low=hold_low)


def test_one_new_message_is_sent_the_same_on_the_fast_path() -> None:
    """With `hold_low` the loop is taken; it holds nothing of more than low priority."""
    fast = 0
    for mailbox in mailboxes_after_two_events():
        newest = mailbox.hot.get(mailbox.head)
        if newest is None or newest.envelope.priority == LOW:
            continue
        connection = first_connection(mailbox)
        fast += max(connection.sent, mailbox.floor) == mailbox.head - 1 and not connection.exhausted
        general = deepcopy(mailbox)
        assert sent(mailbox) == sent(general, hold_low=True)
        assert state_of(mailbox) == state_of(general)
    assert fast > 5


def test_a_new_message_for_an_idle_connection_is_sent_and_in_flight() -> None:
    mailbox = mailbox_with(b"x" * 500)
    assert sent(mailbox) == Sendable([[(1, 1, b"x" * 500)]]), "one message may exceed the window's bytes"
    connection = first_connection(mailbox)
    assert (connection.sent, connection.flight, connection.flight_bytes) == (1, {1: (20, 1)}, 500)
    assert sent(mailbox) is None


@pytest.mark.parametrize(("window", "window_bytes", "count"), [(2, 1000, 2), (4, 25, 2), (4, 5, 1), (1, 1000, 1)])
def test_the_window_bounds_messages_and_bytes_in_flight(window: int, window_bytes: int, count: int) -> None:
    mailbox = mailbox_with(*[b"x" * 10] * 3)
    sendable = sent(mailbox, limits=SendLimits(window, window_bytes, 1000))
    assert sendable == Sendable([[(seq, 1, b"x" * 10) for seq in range(1, count + 1)]])


def test_a_batch_ends_at_its_limit_of_bytes() -> None:
    mailbox = mailbox_with(*[b"x" * 10] * 3)
    sendable = sent(mailbox, limits=SendLimits(4, 1000, 20))
    assert sendable is not None
    assert [[seq for seq, _, _ in part] for part in sendable.parts] == [[1, 2], [3]]


def test_gaps_and_messages_are_sent_in_sequence_order() -> None:
    mailbox = mailbox_with(b"a", b"b", b"c")
    mailbox.supersede(2)
    assert sent(mailbox) == Sendable([[(1, 1, b"a")], (2, 2), [(3, 1, b"c")]])


def test_an_expired_message_is_sent_as_a_gap() -> None:
    mailbox = mailbox_with(b"a", expires_ms=20)
    expired = mailbox.hot[1]
    assert sent(mailbox) == Sendable([(1, 1)], expired=(expired,))
    assert mailbox.hot == {}


def test_a_cold_message_has_to_be_read_first_unless_it_is_held() -> None:
    for hold_low, expected in ((False, Sendable([], load_from=1)), (True, Sendable([], held=True))):
        mailbox = mailbox_with(b"a", b"b", priority=LOW)
        mailbox.spilled = 2
        mailbox.cool()
        assert sent(mailbox, hold_low=hold_low) == expected


def test_a_low_message_is_held_only_while_nothing_of_more_priority_follows_it() -> None:
    mailbox = mailbox_with(b"a", priority=LOW)
    assert sent(mailbox, hold_low=True) == Sendable([], held=True)
    append(mailbox, HIGH, LATER_MS, b"b")
    append(mailbox, LOW, LATER_MS, b"c")
    assert sent(mailbox, hold_low=True) == Sendable([[(1, 1, b"a"), (2, 1, b"b")]], held=True)


def test_an_exhausted_message_keeps_its_place_in_the_window_until_it_has_expired() -> None:
    mailbox = mailbox_with(b"a", b"b", b"c", b"d")
    connection = first_connection(mailbox)
    connection.sent, connection.exhausted = 2, {1: (LATER_MS, "id-1"), 2: (21, "id-2")}
    limits = SendLimits(3, 1000, 1000)
    assert sent(mailbox, limits=limits) == Sendable([[(3, 1, b"c")]])
    assert send(mailbox, connection, 20, limits, hold_low=False) is None
    assert send(mailbox, connection, 21, limits, hold_low=False) == Sendable([[(4, 1, b"d")]])


def test_with_four_windows_acknowledged_above_an_exhausted_one_nothing_more_is_sent_there() -> None:
    mailbox = mailbox_with(*[b"a"] * 10)
    connection = first_connection(mailbox)
    connection.sent, connection.exhausted = 9, {1: (LATER_MS, "id-1")}
    limits = SendLimits(2, 1000, 1000)
    mailbox.settle(range(2, 10), None, 0, POLICY)
    assert sent(mailbox, limits=limits) is None
    mailbox.settle([1], None, 0, POLICY)
    assert sent(mailbox, limits=limits) == Sendable([[(10, 1, b"a")]])
