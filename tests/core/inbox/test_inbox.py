"""The inbox against a model: a list of messages, each with the set of its marks."""

from __future__ import annotations

from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.core.inbox.inbox import ALL, ARCHIVED, IN_ARCHIVE, PINNED, READ, SEEN, UNREAD, Inbox, InboxLimits, inbox_of
from engine.core.model.category import Category, PolicyTerms
from engine.core.model.constants import SEQ_MAX
from engine.core.model.envelope import Envelope
from engine.core.model.message import Message

LIMITS: Final = InboxLimits(messages_max=5, keep_ms=1000, pinned_max=2, numbers_max=700)
NUMBERS: Final = st.lists(st.integers(1, 60), max_size=4)


def message(seq: int) -> Message:
    return Message(seq, Envelope(f"m{seq}", b"", 1, True, b'"id":"m"'), 0, 0)


def filled(*seqs: int) -> Inbox:
    inbox = Inbox(seqs[0])
    for seq in seqs:
        inbox.add(seq, 1000, LIMITS)
    return inbox


class InboxModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.inbox = Inbox(1)
        self.marks: dict[int, int] = {}  # by number of a message that is in it
        self.head = 0
        self.stream: set[int] = set()  # numbers whose entry storage has
        self.revision = 0

    @rule(step=st.sampled_from((1, 1, 1, 2, 300, 900)))
    def a_message_comes(self, step: int) -> None:
        self.head += step
        self.inbox.add(self.head, 1000, LIMITS)
        self.marks[self.head] = 0
        unpinned = sorted(seq for seq, flags in self.marks.items() if not flags & PINNED)
        for seq in unpinned:
            if seq <= self.head - LIMITS.numbers_max or seq in unpinned[: -LIMITS.messages_max]:
                del self.marks[seq]

    @rule(step=st.sampled_from((1, 300, 900)))
    def a_message_comes_that_is_not_kept(self, step: int) -> None:
        self.head += step
        self.inbox.advance(self.head, LIMITS)
        for seq in [seq for seq, flags in self.marks.items() if not flags & PINNED and seq <= self.head - LIMITS.numbers_max]:
            del self.marks[seq]

    @rule(back=NUMBERS, mark=st.sampled_from((READ, SEEN, ARCHIVED)), on=st.booleans())
    def it_is_marked(self, back: list[int], mark: int, on: bool) -> None:
        seqs = [self.head - one for one in back]
        self.inbox.mark(mark, seqs, LIMITS, on=on)
        flags = READ | SEEN if mark == READ and on else mark
        for seq in self.marks.keys() & set(seqs):
            self.marks[seq] = self.marks[seq] | flags if on else self.marks[seq] & ~flags

    @rule(back=NUMBERS)
    def some_are_pinned(self, back: list[int]) -> None:
        seqs = [self.head - one for one in back]
        self.inbox.mark(PINNED, seqs, LIMITS, on=True)
        for seq in seqs:
            if seq in self.marks and sum(bool(flags & PINNED) for flags in self.marks.values()) < LIMITS.pinned_max:
                self.marks[seq] |= PINNED

    @rule(back=NUMBERS)
    def some_are_no_longer_pinned(self, back: list[int]) -> None:
        for seq in [seq for one in back if self.marks.get(seq := self.head - one, 0) & PINNED]:
            self.inbox.mark(PINNED, [seq], LIMITS, on=False)
            self.marks[seq] &= ~PINNED
            unpinned = sorted(seq for seq, flags in self.marks.items() if not flags & PINNED)
            if len(unpinned) > LIMITS.messages_max:
                del self.marks[unpinned[0]]

    @rule(first=st.integers(0, 20), length=st.integers(0, 9))
    def some_are_gone(self, first: int, length: int) -> None:
        low = self.head - first
        self.inbox.remove(low, low + length)
        for seq in [seq for seq in self.marks if low <= seq <= low + length]:
            del self.marks[seq]

    @rule(back=NUMBERS)
    def some_are_too_old(self, back: list[int]) -> None:
        seqs = {self.head - one for one in back}
        self.inbox.age(seqs, 2000)
        for seq in [seq for seq, flags in self.marks.items() if seq in seqs and not flags & PINNED]:
            del self.marks[seq]

    @rule(settled=st.integers(0, 30))
    def a_checkpoint_is_written(self, settled: int) -> None:
        floor = max(self.head - settled, 0)
        fresh = set(range(max(floor - 3, 1), self.head + 1)) - self.stream
        self.inbox.written(fresh)
        self.inbox.condemn(floor, (), (), (), 1000)
        self.stream |= fresh
        low = min(floor + 1, self.inbox.low)
        self.stream = {seq for seq in self.stream if seq >= low} - set(self.inbox.condemned)
        assert {seq for seq in self.marks if seq in fresh or seq > floor} <= self.stream | set(range(floor + 1))
        self.inbox.checkpointed(self.head)

    @rule()
    def the_page_is_read(self) -> None:
        self.inbox = inbox_of(self.inbox.to_stored())

    @rule(floor=st.integers(0, 5))
    def the_counts_are_told(self, floor: int) -> None:
        changed = self.inbox.revise(floor)
        assert self.inbox.revision >= self.revision + changed
        self.revision = self.inbox.revision

    @invariant()
    def it_is_what_the_model_is(self) -> None:
        listed = sorted((seq for seq, flags in self.marks.items() if not flags & ARCHIVED), reverse=True)
        assert self.inbox.select(self.head + 1, 100, ALL) == listed
        assert self.inbox.select(self.head + 1, 2, ALL) == listed[:2]
        unread = [seq for seq in listed if not self.marks[seq] & READ]
        assert self.inbox.select(self.head + 1, 100, UNREAD) == unread
        assert self.inbox.select(self.head, 100, UNREAD) == [seq for seq in unread if seq < self.head]
        archived = {seq for seq, flags in self.marks.items() if flags & ARCHIVED}
        assert set(self.inbox.select(self.head + 1, 100, IN_ARCHIVE)) == archived
        assert self.inbox.counts() == (len(unread), sum(not self.marks[seq] & SEEN for seq in listed))
        assert self.inbox.upto(self.head) == sorted(self.marks)
        assert {seq: self.inbox.flags(seq) for seq in self.marks} == self.marks
        assert self.inbox.is_used == bool(self.marks)


TestInbox = InboxModel.TestCase
TestInbox.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def test_the_stream_loses_what_is_settled_and_not_in_the_inbox_and_nothing_else() -> None:
    inbox = filled(*range(1, 9))  # 4 to 8 are in it
    inbox.written(range(1, 9))
    inbox.condemn(floor=2, others=(7,), gone=(), dying=(), count_max=10)
    assert inbox.condemned == [1, 2]
    assert inbox.low == 3
    inbox.checkpointed(8)
    inbox.remove(7, 7)
    inbox.condemn(floor=8, others=(), gone=(), dying=(8,), count_max=10)
    assert inbox.condemned == [3, 7]


def test_a_pinned_message_stays_when_newer_ones_come_and_its_entry_too() -> None:
    inbox = filled(1, 2, 3)
    inbox.written((1, 2, 3))
    inbox.mark(PINNED, [2], LIMITS, on=True)
    for seq in range(4, 1000):
        inbox.add(seq, 1000, LIMITS)
    inbox.condemn(floor=999, others=(), gone=(), dying=(), count_max=100)
    assert inbox.select(1000, 10, ALL) == [999, 998, 997, 996, 995, 2]
    assert 2 not in inbox.condemned
    assert inbox.low == 2
    inbox.mark(PINNED, [2], LIMITS, on=False)
    assert inbox.condemned[-1] == 2
    inbox.checkpointed(999)
    assert inbox.condemned == [2], "the checkpoint that was being written does not delete it"
    assert inbox.low > 900


def test_no_more_messages_are_pinned_than_allowed() -> None:
    inbox = filled(1, 2, 3)
    inbox.mark(PINNED, [1, 2, 3], LIMITS, on=True)
    assert sorted(inbox.pins) == [1, 2]


def test_an_acknowledged_message_that_leaves_the_inbox_leaves_memory_too() -> None:
    inbox = filled(1, 2)
    assert inbox.keep(message(1)) > 0
    assert inbox.keep(message(9)) == 0
    assert inbox.unwritten_bytes > 0
    for seq in range(3, 8):
        inbox.add(seq, 1000, LIMITS)
    assert not inbox.unwritten
    assert inbox.unwritten_bytes == 0


def test_a_revision_is_above_those_of_every_owner_before() -> None:
    inbox = filled(1)
    assert inbox.revise(0)
    assert not inbox.revise(0)
    assert inbox.revise(1 << 32)
    assert inbox.revision == (1 << 32) + 1
    assert not inbox.revise(1 << 32)
    inbox.mark(READ, [1], LIMITS, on=True)
    assert inbox.revise(1 << 32)


def test_a_category_has_a_time_of_its_own_or_keeps_nothing() -> None:
    assert LIMITS.keep_of(None) == 1000
    assert LIMITS.keep_of(PolicyTerms("a", Category())) == 1000
    assert LIMITS.keep_of(PolicyTerms("a", Category(inbox_ms=5))) == 5
    assert LIMITS.keep_of(PolicyTerms("a", Category(inbox_ms=0))) == 0


def test_a_number_far_above_the_newest_message_takes_no_memory() -> None:
    inbox = filled(1, 2, 5)
    assert inbox.select(SEQ_MAX, 10, ALL) == [5, 2, 1]
    assert inbox.upto(SEQ_MAX) == [1, 2, 5]
    inbox.age([2, SEQ_MAX], 0)
    assert inbox.upto(SEQ_MAX) == [1, 5]
    assert Inbox(1).select(SEQ_MAX, 10, ALL) == Inbox(1).upto(SEQ_MAX) == []
