"""A mailbox's numbers against a model: each is in exactly one state, whatever is sent, settled, refused, trimmed and forgotten."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from itertools import pairwise

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.config import Config
from engine.core.inbox.inbox import InboxLimits
from engine.core.journal.journal_records import message_of, restore, spill_of
from engine.core.journal.stored_formats import decode_stored
from engine.core.mailbox.attachment import Attachment
from engine.core.mailbox.mailbox import Mailbox
from engine.core.mailbox.retry import RetryPolicy
from engine.core.mailbox.send import send
from engine.core.model.category import Category, PolicyTerms
from engine.core.model.constants import NORMAL
from engine.core.model.envelope import Envelope
from engine.core.model.message import Message
from engine.core.wire.records import WEBSOCKET
from tests.support.mailbox_states import first_connection, mailboxes_after_two_events, state_of
from tests.support.operations import calls_of, peak_bytes_of
from tests.support.stored import decode_page

POLICY = RetryPolicy(rtt_initial_ms=250, factor=1.8, first_ms=100, cap_ms=2000, tries=3)
CONFIG = Config(window=4, window_bytes=1 << 20, deliver_bytes_max=1 << 16)
NEVER_MS = 10**12
PENDING, DYING, SETTLED, GONE = "pending", "dying", "settled", "gone"


def message(seq: int, *, retain: bool = True, expires_ms: int = NEVER_MS) -> Message:
    return Message(seq, Envelope(f"i{seq}", b"", NORMAL, retain, b'"id":"i%d"' % seq), expires_ms, 0)


def mailbox_of(count: int) -> Mailbox:
    """A mailbox whose messages 1..`count` are pending in memory."""
    mailbox = Mailbox("t:u", 0)
    for seq in range(1, count + 1):
        mailbox.append(message(seq), b"", 1000)
    return mailbox


def test_a_trim_passes_over_what_is_on_its_way_to_the_dead_letters() -> None:
    mailbox = mailbox_of(5)
    mailbox.refuse([2])
    mailbox.trim(1)
    assert (mailbox.gone, list(mailbox.dying)) == ([(1, 1), (3, 4)], [2])
    mailbox.settle([2], None, 0, POLICY)
    assert (mailbox.gone, mailbox.acked, mailbox.dying) == ([(1, 1), (3, 4)], {2}, {})


def test_numbers_over_between_two_messages_in_storage_are_not_pending() -> None:
    mailbox = mailbox_of(9)
    mailbox.settle([2, 3], None, 0, POLICY)
    mailbox.supersede(5)
    mailbox.refuse([6])
    mailbox.spilled = 9
    mailbox.cool()
    assert (mailbox.cold, mailbox.pending_count()) == ((1, 9), 5)
    mailbox.settle_through(7, None, 0, POLICY)
    assert (list(mailbox.dying), mailbox.pending_count()) == ([6], 2)


def test_a_trim_leaves_what_was_acknowledged_in_the_inbox() -> None:
    mailbox = mailbox_of(0)
    mailbox.inbox_limits = InboxLimits(100, NEVER_MS, 10, 1000)
    for seq in range(1, 7):
        mailbox.append(message(seq), b"", 10)
    mailbox.settle([2, 4], None, 0, POLICY)
    assert [dropped.seq for dropped in mailbox.trim(1)] == [1, 3, 5]
    assert (mailbox.gone, mailbox.acked, list(mailbox.hot)) == ([(1, 5)], set(), [6])
    assert mailbox.inbox is not None
    assert mailbox.inbox.upto(6) == [2, 4, 6]


GAP = 2_000_000


def mailbox_with_gap() -> tuple[Mailbox, Attachment]:
    """Message 1 is pending, then `GAP` numbers are gone, then comes one more; a connection was sent all of it."""
    mailbox = mailbox_of(1)
    mailbox.reach(GAP + 1, ())
    mailbox.append(message(GAP + 2), b"", 1000)
    connection = mailbox.connections["e", 1] = Attachment(("e", 1), WEBSOCKET, "s", "", 0, 0)
    while (sent := send(mailbox, connection, 0, CONFIG, hold_low=False)) is not None:
        assert sent.parts
    return mailbox, connection


def test_an_acknowledgement_by_id_behind_a_long_gap_costs_no_memory_for_its_numbers() -> None:
    mailbox, connection = mailbox_with_gap()
    mailbox.settle([1], connection, 0, POLICY)
    assert peak_bytes_of(lambda: mailbox.settle([GAP + 2], connection, 0, POLICY)) < 100_000
    assert (mailbox.floor, mailbox.gone, mailbox.acked, mailbox.hot) == (GAP + 2, [], set(), {})


def test_a_long_gap_above_a_pending_message_stays_a_range() -> None:
    mailbox, connection = mailbox_with_gap()
    assert peak_bytes_of(lambda: mailbox.settle([GAP + 2], connection, 0, POLICY)) < 100_000
    assert (mailbox.floor, mailbox.gone, mailbox.acked, list(mailbox.hot)) == (0, [(2, GAP + 1)], {GAP + 2}, [1])
    mailbox.settle_through(GAP + 2, connection, 0, POLICY)
    assert (mailbox.floor, mailbox.gone, mailbox.acked) == (GAP + 2, [], set())


def test_a_short_gap_above_a_pending_message_is_settled_by_an_acknowledgement_behind_it() -> None:
    mailbox = mailbox_of(4)
    connection = mailbox.connections["e", 1] = Attachment(("e", 1), WEBSOCKET, "s", "", 0, 0)
    mailbox.supersede(2)
    send(mailbox, connection, 0, CONFIG, hold_low=False)
    mailbox.settle([3], connection, 0, POLICY)
    assert (mailbox.floor, mailbox.gone, mailbox.acked) == (0, [], {2, 3})
    mailbox.settle([1], connection, 0, POLICY)
    assert (mailbox.floor, mailbox.acked) == (3, set())


def test_a_number_lost_in_flight_is_a_gap_for_the_next_connection() -> None:
    mailbox = mailbox_of(1)
    mailbox.append(message(2, expires_ms=5), b"", 1000)
    mailbox.append(message(3), b"", 1000)
    connection = mailbox.connections["e", 1] = Attachment(("e", 1), WEBSOCKET, "s", "", 0, 0)
    send(mailbox, connection, 0, CONFIG, hold_low=False)
    mailbox.expire(2, 5)
    for seq in (3, 1):
        mailbox.settle([seq], connection, 5, POLICY)
    other = mailbox.connections["e", 2] = Attachment(("e", 2), WEBSOCKET, "s", "", mailbox.floor, 5)
    sent = send(mailbox, other, 5, CONFIG, hold_low=False)
    assert sent is not None
    assert sent.parts == [(2, 2)]
    mailbox.append(message(4), b"", 1000)
    send(mailbox, other, 5, CONFIG, hold_low=False)
    mailbox.settle([4], other, 5, POLICY)
    assert (mailbox.floor, mailbox.gone) == (4, [])


def test_a_trim_after_a_jump_of_the_head_does_not_visit_every_number() -> None:
    mailbox = mailbox_of(3)
    mailbox.reach(GAP, ())
    assert calls_of(lambda: mailbox.trim(2)) < 100
    assert (mailbox.gone, list(mailbox.hot)) == ([(1, 1), (4, GAP)], [2, 3])
    mailbox.append(message(GAP + 1), b"", 1000)
    mailbox.append(message(GAP + 2), b"", 1000)
    assert calls_of(lambda: mailbox.trim(1)) < 100
    assert (mailbox.gone, list(mailbox.hot)) == ([(1, GAP + 1)], [GAP + 2])


def settle_unsent(mailbox: Mailbox, count: int) -> None:
    """So many messages come for the inbox only."""
    for _ in range(count):
        seq = mailbox.head + 1
        mailbox.append(message(seq), b"", 10)
        mailbox.settle_unsent(seq)


def test_what_is_for_the_inbox_only_trims_nothing_that_is_pending() -> None:
    mailbox = mailbox_of(2)
    settle_unsent(mailbox, 50)
    assert mailbox.trim(2) == []
    assert list(mailbox.hot) == [1, 2]
    mailbox.append(message(53), b"", 10)
    assert [dropped.seq for dropped in mailbox.trim(2)] == [1]
    assert (mailbox.gone, list(mailbox.hot)) == ([(1, 1)], [2, 53])


@pytest.mark.parametrize("order", [(2, 3, 4, 5, 6, 7, 8), (8, 7, 6, 5, 4, 3, 2), (8, 2, 6, 4, 3, 7, 5)])
def test_numbers_acknowledged_by_id_above_a_pending_one_cost_bounded_memory(
    monkeypatch: pytest.MonkeyPatch, order: tuple[int, ...]
) -> None:
    monkeypatch.setattr("engine.core.mailbox.mailbox._ACKED_MAX", 3)
    mailbox = mailbox_of(9)
    connection = mailbox.connections["e", 1] = Attachment(("e", 1), WEBSOCKET, "s", "", 9, 0)
    for seq in order:
        mailbox.settle([seq], connection, 0, POLICY)
        assert len(mailbox.acked) <= 3
    assert sorted([*mailbox.acked, *(seq for first, last in mailbox.gone for seq in range(first, last + 1))]) == sorted(order)
    assert list(mailbox.hot) == [1, 9]
    mailbox.settle([1], connection, 0, POLICY)
    mailbox.settle([9], connection, 0, POLICY)
    assert mailbox.pending_count() == 0
    assert mailbox.floor >= 8


def test_what_is_for_the_inbox_only_costs_bounded_memory_above_a_pending_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.core.mailbox.mailbox._ACKED_MAX", 10)
    mailbox = mailbox_of(1)
    mailbox.inbox_limits = InboxLimits(100, NEVER_MS, 10, 1000)
    settle_unsent(mailbox, 100)
    assert (len(mailbox.acked), mailbox.gone, list(mailbox.hot)) == (10, [(12, 101)], [1])
    assert mailbox.inbox is not None
    assert mailbox.inbox.upto(101) == list(range(2, 102))
    again = restore("t:u", decode_page(mailbox.key, spill_of(mailbox).page), 0, mailbox.inbox_limits)
    assert (again.acked, again.gone, again.cold) == (mailbox.acked, mailbox.gone, (1, 1))
    mailbox.settle([1], None, 0, POLICY)
    assert (mailbox.floor, mailbox.acked, mailbox.gone) == (11, set(), [(12, 101)])


def test_messages_that_are_not_kept_lengthen_no_inbox() -> None:
    mailbox = Mailbox("t:u", 0)
    mailbox.inbox_limits = InboxLimits(100, NEVER_MS, 10, 1000)
    mailbox.append(message(1), b"", 10)
    for seq in range(2, 3001):
        noise = message(seq)
        noise.envelope = msgspec.structs.replace(noise.envelope, policy_terms=PolicyTerms("noise", Category(inbox_ms=0)))
        mailbox.append(noise, b"", 10)
        mailbox.settle([seq - 1], None, 0, POLICY)
        page = decode_page(mailbox.key, spill_of(mailbox).page)
        assert page.inbox is not None
        assert len(page.inbox.stored) * 8 < 1000 + 300, "the base moves by no less than 256"


def test_an_acknowledgement_settles_the_same_on_the_fast_path() -> None:
    fast = 0
    for mailbox in mailboxes_after_two_events():
        for seq in range(mailbox.floor + 1, mailbox.head + 1):
            general, quick = deepcopy(mailbox), deepcopy(mailbox)
            settled = quick.settle_through(seq, first_connection(quick), 40, POLICY)
            first_connection(general).measure(seq, 40, POLICY)
            through = general._settle_range(seq, first_connection(general))
            assert settled == through
            assert state_of(quick) == state_of(general)
            fast += not (mailbox.cold or mailbox.acked or mailbox.gone or mailbox.dying) and len(mailbox.connections) == 1
    assert fast > 100


class Numbers(RuleBasedStateMachine):
    """One user with two connections, one of which may end and begin again, and a storage that has what it was given."""

    back = st.integers(0, 8)  # numbers are drawn as distances from the head: most of them exist

    @initialize()
    def start(self) -> None:
        self.mailbox = Mailbox("t:u", 0)
        self.now_ms = 0
        self.state: dict[int, str] = {}
        self.stream: dict[int, Message] = {}
        for number in (1, 2):
            self.connect(number)

    def connect(self, number: int) -> None:
        conn = ("edge-0/1", number)
        self.mailbox.connections[conn] = Attachment(conn, WEBSOCKET, "s", "", self.mailbox.floor, self.now_ms)

    def connection(self, number: int) -> Attachment:
        return self.mailbox.connections["edge-0/1", number]

    def become(self, seqs: Iterable[int], state: str, *before: str) -> None:
        """Those of the numbers that are in one of the states `before` change it."""
        self.state.update((seq, state) for seq in list(seqs) if self.state.get(seq) in before)

    # -- what happens -------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 6), retain=st.booleans(), lives_ms=st.sampled_from([300, NEVER_MS, NEVER_MS]))
    def append(self, count: int, retain: bool, lives_ms: int) -> None:
        for seq in range(self.mailbox.head + 1, self.mailbox.head + 1 + count):
            self.mailbox.append(message(seq, retain=retain, expires_ms=self.now_ms + lives_ms), b"", 1000)
            self.state[seq] = PENDING

    @rule(number=st.sampled_from([1, 2]))
    def send(self, number: int) -> None:
        expired = {seq for seq, held in self.mailbox.hot.items() if held.expires_ms <= self.now_ms}
        pumped = send(self.mailbox, self.connection(number), self.now_ms, CONFIG, hold_low=False)
        self.become(expired - self.mailbox.hot.keys(), GONE, PENDING)
        for part in pumped.parts if pumped is not None else []:
            if isinstance(part, list):
                assert all(self.state[seq] == PENDING for seq, _, _ in part), "only what is pending is sent"
            else:
                assert all(self.state[seq] == GONE for seq in range(part[0], part[1] + 1)), "only what is gone is said to be"

    @rule(number=st.sampled_from([1, 2]), ms=st.sampled_from([100, 1000]))
    def wait(self, number: int, ms: int) -> None:
        self.now_ms += ms
        self.connection(number).overdue(self.mailbox.hot, self.now_ms, POLICY)

    @rule(number=st.sampled_from([1, 2]))
    def reconnect(self, number: int) -> None:
        self.mailbox.detach(("edge-0/1", number))
        self.connect(number)

    @rule(number=st.sampled_from([0, 1, 2]), back=back)
    def acknowledge_through(self, number: int, back: int) -> None:
        seq = max(0, self.mailbox.head - back)
        self.mailbox.settle_through(seq, self.connection(number) if number else None, self.now_ms, POLICY)
        self.become(range(1, seq + 1), SETTLED, PENDING, GONE)

    @rule(number=st.sampled_from([0, 1, 2]), backs=st.lists(back, min_size=1, max_size=3))
    def acknowledge(self, number: int, backs: list[int]) -> None:
        seqs = [self.mailbox.head - back for back in backs]
        handled = [seq for seq in seqs if self.state.get(seq) in (PENDING, DYING)]
        connection = self.connection(number) if number else None
        said = min(max(self.mailbox.hot.keys() & handled, default=0), connection.sent) if connection else 0
        untold = connection.untold if connection else 0
        gaps = [(first, last) for first, last in self.mailbox.gone if untold < first and last < said]
        self.mailbox.settle(seqs, connection, self.now_ms, POLICY)
        self.become(handled, SETTLED, PENDING, DYING)
        for first, last in gaps:
            self.become(range(first, last + 1), SETTLED, GONE)  # a gap is said before anything after it, unless it was sent by then

    @rule(backs=st.lists(back, min_size=1, max_size=2))
    def refuse(self, backs: list[int]) -> None:
        for refused in self.mailbox.refuse([self.mailbox.head - back for back in backs]):
            assert self.state[refused.seq] == PENDING
            self.state[refused.seq] = DYING

    @rule()
    def the_dead_letters_have_what_was_refused(self) -> None:
        dying = list(self.mailbox.dying)
        self.mailbox.settle(dying, None, self.now_ms, POLICY)
        self.become(dying, SETTLED, DYING)

    @rule(back=back)
    def supersede(self, back: int) -> None:
        seq = self.mailbox.head - 1 - back
        self.mailbox.supersede(seq)
        self.become([seq], GONE, PENDING)

    @rule(kept_max=st.integers(1, 8))
    def trim(self, kept_max: int) -> None:
        self.mailbox.trim(kept_max)
        dropped = sorted(seq for seq, state in self.state.items() if state == PENDING)[:-kept_max]
        if dropped:  # single acknowledgements far behind are forgotten with what lay between them: else a set would grow for ever
            self.become(range(self.mailbox.floor + 1, dropped[-1] + 1), GONE, PENDING, SETTLED)

    @rule(count=st.integers(1, 3))
    def come_for_the_inbox_only(self, count: int) -> None:
        settle_unsent(self.mailbox, count)
        self.state.update(dict.fromkeys(range(self.mailbox.head - count + 1, self.mailbox.head + 1), SETTLED))

    @rule()
    def spill_and_cool(self) -> None:
        self.stream.update((seq, message_of(decode_stored(entry))) for seq, entry in spill_of(self.mailbox).entries)
        self.mailbox.spilled = self.mailbox.head
        self.become((dropped.seq for dropped in self.mailbox.cool() if not dropped.envelope.retain), GONE, PENDING)

    @rule(count=st.integers(1, 6), losing=st.sets(back, max_size=2))
    def read(self, count: int, losing: set[int]) -> None:
        """A range read, from the beginning of what is cold; some of it has left the stream."""
        lost = {self.mailbox.head - back for back in losing}
        if self.mailbox.cold is not None:
            first, last = self.mailbox.cold
            last = min(last, first + count - 1)
            cold = [seq for seq in range(first, last + 1) if seq not in self.mailbox.hot and self.mailbox.is_cold(seq)]
            found = {seq: held for seq, held in self.stream.items() if first <= seq <= last and seq not in lost}
            self.mailbox.loaded(first, last, found.values())
            self.become((seq for seq in cold if seq not in found), GONE, PENDING)

    @rule()
    def crash(self) -> None:
        """The shard dies right after a checkpoint: what its page says is all there is, and what was dying is pending again."""
        spill = spill_of(self.mailbox)
        self.stream.update((seq, message_of(decode_stored(entry))) for seq, entry in spill.entries)
        self.mailbox = restore("t:u", decode_page(spill.key, spill.page), self.now_ms)
        for number in (1, 2):
            self.connect(number)
        self.become(self.state, PENDING, DYING)

    # -- what it must be like -----------------------------------------------------------------------------------------

    @invariant()
    def every_number_is_in_the_one_state_that_history_gave_it(self) -> None:
        mailbox = self.mailbox
        assert self.state.keys() == set(range(1, mailbox.head + 1))
        for seq, state in self.state.items():
            found = []
            if seq in mailbox.acked or (seq <= mailbox.floor and seq not in mailbox.dying):
                found.append(SETTLED)
            if any(first <= seq <= last for first, last in mailbox.gone):
                found.append(GONE)
            if seq in mailbox.dying:
                found.append(DYING)
            if seq in mailbox.hot or (mailbox.cold and mailbox.cold[0] <= seq <= mailbox.cold[1] and not found):
                found.append(PENDING)
            assert found == [state], f"{seq} should be {state}, and is {found}"

    @invariant()
    def ranges_are_apart_and_bytes_are_counted(self) -> None:
        gone = self.mailbox.gone
        assert all(first <= last for first, last in gone)
        assert all(before[1] + 1 < after[0] for before, after in pairwise(gone))
        assert self.mailbox.hot_bytes == sum(held.size for held in self.mailbox.hot.values())
        for connection in self.mailbox.connections.values():
            assert connection.flight_bytes == sum(len(self.mailbox.hot[seq].envelope.body) for seq in connection.flight)


TestNumbers = Numbers.TestCase
TestNumbers.settings = settings(max_examples=300, stateful_step_count=40)
