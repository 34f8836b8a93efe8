"""What is sent next on one connection: the fast path for one new message, and what holds a message back."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.config import Config
from engine.core.mailbox.attachment import Attachment
from engine.core.mailbox.conflation import decide
from engine.core.mailbox.id_lookup import seqs_shown
from engine.core.mailbox.mailbox import Mailbox
from engine.core.mailbox.send import Early, Sendable, send
from engine.core.model.constants import HIGH, LOW
from engine.core.model.message import Collapsing, Message
from engine.core.wire.records import WEBSOCKET
from tests.support.mailbox_states import CONFIG, LATER_MS, POLICY, append, connect, first_connection, mailboxes_after_two_events, state_of


def mailbox_with(*bodies: bytes, priority: int = HIGH, expires_ms: int = LATER_MS) -> Mailbox:
    """A connection that was sent nothing yet of these messages."""
    mailbox = Mailbox("t:u", 0)
    connect(mailbox, 0)
    for body in bodies:
        append(mailbox, priority, expires_ms, body)
    return mailbox


def sent(mailbox: Mailbox, *, config: Config = CONFIG, hold_low: bool = False) -> Sendable | None:
    return send(mailbox, first_connection(mailbox), 20, config, hold_low=hold_low)


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
    sendable = sent(mailbox, config=Config(window=window, window_bytes=window_bytes, deliver_bytes_max=1000))
    assert sendable == Sendable([[(seq, 1, b"x" * 10) for seq in range(1, count + 1)]])


def test_a_batch_ends_at_its_limit_of_bytes() -> None:
    mailbox = mailbox_with(*[b"x" * 10] * 3)
    sendable = sent(mailbox, config=Config(window=4, window_bytes=1000, deliver_bytes_max=20))
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
    config = Config(window=3, window_bytes=1000, deliver_bytes_max=1000)
    assert sent(mailbox, config=config) == Sendable([[(3, 1, b"c")]])
    assert send(mailbox, connection, 20, config, hold_low=False) is None
    assert send(mailbox, connection, 21, config, hold_low=False) == Sendable([[(4, 1, b"d")]])


def test_with_four_windows_acknowledged_above_an_exhausted_one_nothing_more_is_sent_there() -> None:
    mailbox = mailbox_with(*[b"a"] * 10)
    connection = first_connection(mailbox)
    connection.sent, connection.exhausted = 9, {1: (LATER_MS, "id-1")}
    config = Config(window=2, window_bytes=1000, deliver_bytes_max=1000)
    mailbox.settle(range(2, 10), None, 0, POLICY)
    assert sent(mailbox, config=config) is None
    mailbox.settle([1], None, 0, POLICY)
    assert sent(mailbox, config=config) == Sendable([[(10, 1, b"a")]])


# -- early copies -----------------------------------------------------------------------------------------------------


def crowded(*priorities: int) -> Mailbox:
    """A connection that takes early copies, its window full of low messages, and messages of these priorities behind."""
    mailbox = Mailbox("t:u", 0)
    connect(mailbox, 0, early=True)
    for priority in (*[LOW] * CONFIG.window, *priorities):
        append(mailbox, priority, LATER_MS, b"x")
        if mailbox.head == CONFIG.window:
            sent(mailbox)
    return mailbox


def test_high_message_behind_full_window_is_sent_early_once() -> None:
    mailbox = crowded(LOW, HIGH)
    assert sent(mailbox) == Sendable([Early([(6, 1, b"x")])])
    assert first_connection(mailbox).sent == CONFIG.window
    assert sent(mailbox) is None
    mailbox.settle_through(4, first_connection(mailbox), 30, POLICY)
    assert sent(mailbox) == Sendable([[(5, 1, b"x"), (6, 2, b"x")]]), "unacknowledged, it comes in its place"


def test_early_copy_acknowledged_by_id_is_not_sent_again() -> None:
    mailbox = crowded(LOW, HIGH)
    sent(mailbox)
    connection = first_connection(mailbox)
    mailbox.settle(seqs_shown(mailbox, ["id-6"], connection), connection, 30, POLICY)
    assert (mailbox.floor, mailbox.acked) == (0, {6})
    mailbox.settle_through(5, connection, 30, POLICY)
    assert sent(mailbox) is None
    assert mailbox.floor == 6


def test_early_copies_beyond_their_room_wait_for_it() -> None:
    mailbox = crowded(LOW, HIGH, HIGH)
    assert sent(mailbox) == Sendable([Early([(6, 1, b"x")])])
    connection = first_connection(mailbox)
    mailbox.settle([6], connection, 30, POLICY)
    assert sent(mailbox) == Sendable([Early([(7, 1, b"x")])])


def test_early_copy_is_never_superseded() -> None:
    mailbox = crowded(LOW, HIGH)
    known = Collapsing(6, 1, HIGH, True)
    assert decide(mailbox, known, HIGH, True, Config()).supersedes == 6
    sent(mailbox)
    assert decide(mailbox, known, HIGH, True, Config()).supersedes == 0


def test_early_copy_is_revoked_when_acknowledged_elsewhere() -> None:
    mailbox = crowded(LOW, HIGH)
    sent(mailbox)
    assert mailbox.settle([6], None, 30, POLICY).revoked == {first_connection(mailbox).conn: ["id-6"]}


@pytest.mark.parametrize("end", ["ahead", "reached", "on the next connection", "with its shard"])
def test_acknowledged_early_copy_settles_no_gap_below_its_place(end: str) -> None:
    """The client acknowledges the copy before it gets the gap."""
    mailbox = crowded(LOW, HIGH, LOW, LOW, LOW, HIGH)
    sent(mailbox)
    mailbox.supersede(5)
    connection = first_connection(mailbox)
    if end == "reached":
        mailbox.settle_through(4, connection, 30, POLICY)
    elif end != "ahead":
        mailbox.detach(connection.conn)
        mailbox.settle_through(4, None, 30, POLICY)
        mailbox.hot[6].attempts *= end == "on the next connection"
        connection = Attachment(("edge-0/a", 2), WEBSOCKET, "s", "", mailbox.floor, 30, early=True)
        mailbox.connections[connection.conn] = connection
    told = send(mailbox, connection, 40, CONFIG, hold_low=False)
    assert (told is None) == (end == "ahead")
    mailbox.settle([6], connection, 50, POLICY)
    assert mailbox.gone == [(5, 5)]
    mailbox.settle_through(4, connection, 60, POLICY)
    send(mailbox, connection, 60, CONFIG, hold_low=False)
    mailbox.settle([7], connection, 70, POLICY)
    assert (mailbox.floor, mailbox.gone) == (7, [])


class EarlyCopies(RuleBasedStateMachine):
    """Two connections whose clients drop repeats by id, and acknowledge in any order; numbers, ids, ends and cold messages at random."""

    def __init__(self) -> None:
        super().__init__()
        self.mailbox = Mailbox("t:u", 0)
        self.number = 0
        self.acknowledged: set[int] = set()
        self.in_order: dict[int, list[int]] = {}  # by connection: first sends in place
        self.early: dict[int, set[int]] = {}
        for _ in range(2):
            self.open()

    def open(self) -> None:
        self.number += 1
        self.in_order[self.number], self.early[self.number] = [], set()
        connect(self.mailbox, self.number, early=True)
        first = self.mailbox.connections[("edge-0/a", self.number)]
        first.sent = self.mailbox.floor
        first.spend(self.mailbox.hot)
        if first.early:
            first.early.clear()
        first.looked = 0
        self.pump()

    def pump(self) -> None:
        for (_, number), connection in self.mailbox.connections.items():
            sendable = send(self.mailbox, connection, 20, CONFIG, hold_low=False)
            while sendable is not None:
                for part in sendable.parts:
                    if isinstance(part, Early):
                        assert connection.early is not None
                        assert len(connection.early) <= 1
                        for seq, _, _ in part.messages:
                            assert seq not in self.early[number], "an early copy is sent once on a connection"
                            assert seq not in self.acknowledged
                            self.early[number].add(seq)
                    elif isinstance(part, list):
                        assert not self.acknowledged.intersection(seq for seq, _, _ in part)
                        self.in_order[number] += [seq for seq, _, _ in part]
                if sendable.load_from:
                    last = min(sendable.load_from + 3, self.mailbox.head)
                    found = [self.bodies[seq] for seq in range(sendable.load_from, last + 1) if seq in self.bodies]
                    self.mailbox.loaded(sendable.load_from, last, [deepcopy(message) for message in found])
                sendable = send(self.mailbox, connection, 20, CONFIG, hold_low=False)

    bodies: dict[int, Message]

    @initialize()
    def begin(self) -> None:
        self.bodies = {}

    @rule(priority=st.sampled_from([HIGH, LOW, LOW]))
    def publish(self, priority: int) -> None:
        append(self.mailbox, priority, LATER_MS, b"x")
        self.bodies[self.mailbox.head] = deepcopy(self.mailbox.hot[self.mailbox.head])
        self.pump()

    @rule(which=st.integers(0, 1), data=st.data())
    def acknowledge_in_order(self, which: int, data: st.DataObject) -> None:
        connection = list(self.mailbox.connections.values())[which]
        shown = self.in_order[connection.conn[1]]
        if shown:
            seq = data.draw(st.sampled_from(shown))
            self.acknowledged.update(range(1, seq + 1))
            self.mailbox.settle_through(seq, connection, 30, POLICY)
            self.pump()

    @rule(which=st.integers(0, 1), data=st.data())
    def acknowledge_by_id(self, which: int, data: st.DataObject) -> None:
        connection = list(self.mailbox.connections.values())[which]
        shown = sorted({*self.in_order[connection.conn[1]], *self.early[connection.conn[1]]})
        if shown:
            seq = data.draw(st.sampled_from(shown))
            self.acknowledged.add(seq)
            self.mailbox.settle(seqs_shown(self.mailbox, [f"id-{seq}"], connection), connection, 30, POLICY)
            self.pump()

    @rule(which=st.integers(0, 1))
    def reconnect(self, which: int) -> None:
        self.mailbox.detach(list(self.mailbox.connections)[which])
        self.open()

    @rule()
    def cool(self) -> None:
        self.mailbox.spilled = self.mailbox.head
        self.mailbox.cool()

    @invariant()
    def nothing_unacknowledged_is_settled(self) -> None:
        mailbox = self.mailbox
        pending = {seq for seq in range(1, mailbox.head + 1) if mailbox.is_pending(seq)}
        assert pending == set(range(1, mailbox.head + 1)) - self.acknowledged
        for seqs in self.in_order.values():
            assert seqs == sorted(set(seqs))

    def teardown(self) -> None:
        for connection in list(self.mailbox.connections.values())[:1]:
            while pending := [seq for seq in range(1, self.mailbox.head + 1) if self.mailbox.is_pending(seq)]:
                self.pump()
                assert pending[0] in self.in_order[connection.conn[1]], "each pending message comes in its place"
                self.acknowledged.add(pending[0])
                self.mailbox.settle([pending[0]], connection, 30, POLICY)


TestEarlyCopies = EarlyCopies.TestCase
