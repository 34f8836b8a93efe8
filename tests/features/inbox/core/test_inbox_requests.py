"""Inboxes at a shard: what is in them, what they count, and that neither crashes nor evictions change it."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.core.inbox.inbox import ALL, ARCHIVED, IN_ARCHIVE, PINNED, READ, SEEN, UNREAD, InboxLimits
from engine.core.model.category import Category, PolicyTerms
from engine.core.wire import records as wire
from tests.support.shard_world import World, small_config

LIMITS: Final = InboxLimits(messages_max=6, keep_ms=600_000, pinned_max=2, numbers_max=100)
NOT_KEPT: Final = PolicyTerms("noise", Category(inbox_ms=0))
KEY: Final = "t:u"


def world(**changes: Any) -> World:
    return World(inbox=LIMITS, **changes)


def said_of(said: list[Any], kind: type) -> list[Any]:
    return [record for record in said if type(record) is kind]


def read(w: World, view: int = ALL, before: int = 0, limit: int = 100) -> wire.InboxIs:
    w.refs += 1
    (answer,) = [one for one in said_of(w.ask(wire.ReadInbox(w.refs, KEY, before, limit, view)), wire.InboxIs) if one.ref == w.refs]
    assert answer.status == wire.OK
    return answer


def mark(w: World, mark: int, *ids: str, on: bool = True, upto: int = 0, seqs: tuple[int, ...] = (), epoch: str = "") -> wire.InboxMarked:
    w.refs += 1
    w.tell(wire.MarkInbox(w.refs, KEY, mark, on, list(seqs), list(ids), upto, epoch))
    (answer,) = [one for one in said_of(w.settle(), wire.InboxMarked) if one.ref == w.refs]
    return answer


def ids(answer: wire.InboxIs) -> list[str]:
    return [row.body.decode().split('"')[3] for row in answer.rows]


def evict(w: World) -> None:
    w.checkpoint()
    w.now_ms += w.config.publish_timeout_ms + w.config.mailbox_idle_ms
    w.core.evict(w.now_ms)


def with_three_acknowledged() -> World:
    """A user whose client has acknowledged three messages."""
    w = world()
    w.attach(1)
    for id in "abc":
        w.post(id=id)
    w.settle()
    w.ack(1, 3)
    return w


def test_an_acknowledged_message_stays_in_the_inbox() -> None:
    w = with_three_acknowledged()
    answer = read(w)
    assert ids(answer) == ["c", "b", "a"]
    assert [row.acked for row in answer.rows] == [True] * 3
    assert (answer.unread, answer.unseen) == (3, 3)
    w.checkpoint()
    assert ids(read(w)) == ["c", "b", "a"]
    assert w.core.mailbox_store.memory.unwritten_bytes == 0


def test_a_message_that_a_crash_takes_between_its_acknowledgement_and_the_checkpoint_is_in_the_inbox() -> None:
    w = world()
    w.attach(1)
    w.publish(id="a")
    w.ack(1, 1)
    w.now_ms += 1000
    w.settle()  # the acknowledgement is journalled
    w.crash()
    assert ids(read(w)) == ["a"]
    w.checkpoint()
    w.crash()
    assert ids(read(w)) == ["a"]
    assert not [one for one in w.connect(2) if hasattr(one, "messages")], "nothing acknowledged comes again"


def test_what_is_not_to_be_kept_leaves_storage_when_it_is_acknowledged() -> None:
    w = world()
    w.post(id="kept")
    w.post(id="noise", policy_terms=NOT_KEPT)
    w.publish(id="after")
    w.checkpoint()
    assert set(w.streams[KEY]) == {1, 2, 3}, "pending"
    w.tell(wire.Settle(9, KEY, 3, []))
    w.persist()
    assert set(w.streams[KEY]) == {1, 3}
    assert ids(read(w)) == ["after", "kept"]


def test_reading_acknowledges_what_is_pending_on_all_devices() -> None:
    w = world()
    w.attach(1, counts=True)
    w.attach(2, counts=True)
    w.post(id="a")
    w.publish(id="b")
    w.refs += 1
    said = w.ask(wire.MarkInbox(w.refs, KEY, READ, True, [], ["a"]))
    assert sorted(record.conn for record in said_of(said, wire.Revoke)) == [1, 2]
    assert said_of(said, wire.InboxMarked)[0].unread == 1
    assert [(row.acked, row.flags) for row in read(w).rows] == [(False, 0), (True, READ | SEEN)]


@pytest.mark.parametrize("flag", [READ, ARCHIVED])
@pytest.mark.parametrize("stored", [False, True])
def test_a_crash_right_after_a_mark_keeps_its_acknowledgement(flag: int, stored: bool) -> None:
    w = world()
    w.post(id="a")
    w.publish(id="b")
    if stored:
        w.checkpoint()
    assert mark(w, flag, "b").status == wire.OK
    w.crash()
    view = IN_ARCHIVE if flag == ARCHIVED else ALL
    assert {row.seq: row.acked for row in read(w, view).rows if row.seq == 2} == {2: True}
    assert [one.messages[0][0] for one in w.connect(1) if hasattr(one, "messages")] == [1], "what was marked does not come again"


def test_a_marked_message_that_has_left_the_inbox_is_unknown() -> None:
    w = world()
    for number in range(LIMITS.messages_max):
        w.post(id=f"m{number}")
    w.post(id="noise", policy_terms=NOT_KEPT)
    w.publish(id="newest")
    answer = mark(w, READ, "m0", "noise", "newest", "never")
    assert (answer.unknown, answer.unread) == (["m0", "noise", "never"], LIMITS.messages_max - 1)


def test_a_mark_of_nothing_is_answered_by_a_group_only() -> None:
    """A shard that has lost the user without knowing it finds nothing; the group is fenced."""
    w = world()
    w.tell(wire.MarkInbox(7, KEY, SEEN, True, [], [], -1, ""))
    assert said_of(w.said(), wire.InboxMarked) == []
    assert [answer.status for answer in said_of(w.settle(), wire.InboxMarked)] == [wire.OK]


def test_a_marked_number_of_another_epoch_changes_nothing() -> None:
    w = world()
    w.publish(id="a")
    for late in (mark(w, READ, upto=1, epoch="e0"), mark(w, READ, seqs=(1,), epoch="e0")):
        assert late.status == wire.CONFLICT
        assert [(row.acked, row.flags) for row in read(w).rows] == [(False, 0)]
    assert mark(w, READ, upto=1, epoch="e1").status == wire.OK
    assert [(row.acked, row.flags) for row in read(w).rows] == [(True, READ | SEEN)]


def test_a_gap_changes_the_counts() -> None:
    w = world()
    w.attach(1, counts=True)
    w.publish(id="a", ttl_ms=100)
    w.detach(1)
    w.now_ms += 200
    w.publish(id="b")
    w.connect(2, counts=True)
    w.core.tick(w.now_ms)
    w.settle()
    answer = read(w)
    assert (ids(answer), answer.unread) == (["b"], 1)


def test_a_refused_message_leaves_the_inbox_when_it_is_among_the_dead_letters_for_good() -> None:
    w = world()
    w.attach(1)
    w.post(id="a")
    w.publish(id="b")
    w.nack(1, "a")
    w.settle()
    assert ids(read(w)) == ["b"]
    w.wait(10_000)
    w.crash()
    assert ids(read(w)) == ["b"]


def test_a_full_inbox_survives_a_crash_after_a_refusal() -> None:
    w = world()
    w.attach(1)
    for id in "abcdef":
        w.post(id=id)
    w.settle()
    w.nack(1, "c")
    w.fetch()
    w.publish(id="g")
    before = ids(read(w))
    w.crash()
    assert ids(read(w)) == before == [*"gfedba"]


def test_ids_that_only_storage_knows_are_answered_as_unknown() -> None:
    w = world(recent_ids=1)
    w.attach(1)
    for id in "abc":
        w.post(id=id)
    w.settle()
    w.acknowledge(1, 3)
    w.detach(1)
    evict(w)
    answer = mark(w, READ, "a", "c")
    assert answer.unknown == ["a"]
    assert answer.unread == 2
    assert mark(w, READ, seqs=(1,)).unread == 1


def test_an_entry_that_storage_has_trimmed_leaves_the_inbox_when_it_is_read() -> None:
    w = with_three_acknowledged()
    w.persist()
    del w.streams[KEY][1]
    assert ids(read(w)) == ["c", "b"]
    assert read(w).unread == 2


def test_a_read_is_refused_while_too_many_wait_and_answered_when_storage_is_away() -> None:
    w = world(inbox_reads_max=1)
    w.publish()
    w.checkpoint()
    evict(w)
    w.core.pages_loaded({KEY: w.page(KEY)}, w.now_ms)
    w.tell(wire.ReadInbox(71, KEY, 0, 10, ALL), wire.ReadInbox(72, KEY, 0, 10, ALL))
    (refused,) = said_of(w.raw(), wire.Rejected)
    assert (refused.ref, refused.status) == (72, wire.OVERLOADED)
    w.core.user_requests.read_failed(w.core.user_requests.take_reads(10))
    (failed,) = said_of(w.raw(), wire.InboxIs)
    assert (failed.ref, failed.status) == (71, wire.UNAVAILABLE)


def test_a_page_reads_no_long_backlog_between_two_messages() -> None:
    w = world(offline_max=1000)
    w.publish(id="old")
    mark(w, PINNED, "old")
    for number in range(300):
        w.post(id=f"n{number}", policy_terms=NOT_KEPT)
        w.settle()
    w.publish(id="new")
    evict(w)
    w.core.pages_loaded({KEY: w.page(KEY)}, w.now_ms)
    w.tell(wire.ReadInbox(71, KEY, 0, 10, ALL))
    (asked,) = w.core.user_requests.reads_wanted
    assert asked.range.last - asked.range.first < 300
    (first,) = said_of(w.settle(), wire.InboxIs)
    assert (ids(first), first.before) == (["new"], 302)
    assert ids(read(w, before=first.before)) == ["old"]


def test_a_page_of_more_bytes_than_allowed_is_cut_and_goes_on_from_there() -> None:
    w = world(inbox_page_bytes_max=200)
    for id in "abcd":
        w.post(id=id, more=b',"x":"%b"' % (b"y" * 80))
    w.settle()
    answer = read(w)
    assert (ids(answer), answer.before) == (["d", "c"], 3)
    assert ids(read(w, before=answer.before)) == ["b", "a"]
    assert read(w, limit=3).before == 3
    assert read(w, before=3).before == 0


def test_the_acknowledged_messages_of_a_mailbox_are_written_at_once_when_too_many_wait_for_a_checkpoint() -> None:
    w = world(inbox_unwritten_bytes_max=1000)
    w.attach(1)
    for number in range(6):
        w.post(id=f"m{number}", more=b',"x":"%b"' % (b"y" * 100))
    w.settle()
    w.acknowledge(1, 6)
    assert w.core.mailbox_store.urgent
    w.checkpoint(full=False)
    assert w.core.mailbox_store.memory.unwritten_bytes == 0
    assert len(read(w).rows) == 6


def test_an_engine_without_inboxes_keeps_nothing_and_says_so() -> None:
    w = World()
    assert not said_of(w.connect(1, counts=True), wire.Counts)
    w.publish(id="a")
    w.ack(1, 1)
    w.persist()
    assert not w.streams[KEY]
    w.tell(wire.ReadInbox(7, KEY, 0, 10, ALL), wire.MarkInbox(8, KEY, READ, True, [], [], -1))
    assert [record.status for record in w.settle() if record.ref in (7, 8)] == [wire.NOT_FOUND] * 2


def test_an_inbox_that_is_turned_off_leaves_storage_with_the_next_checkpoint() -> None:
    w = world()
    w.publish(id="a")
    w.tell(wire.Settle(9, KEY, 1, []))
    w.persist()
    assert w.streams[KEY]
    w.config = small_config()
    w.crash()
    w.post(id="b")
    w.ask(wire.Settle(10, KEY, 2, []))
    w.tell(wire.Settle(11, KEY, 2, []))
    w.persist()
    assert not w.streams[KEY]


def test_an_erased_user_has_an_empty_inbox() -> None:
    w = world()
    w.publish(id="a")
    w.tell(wire.Settle(9, KEY, 1, []), wire.Erase(10, KEY))
    w.persist()
    assert read(w).rows == []
    assert not w.streams.get(KEY)
    w.publish(id="b")
    assert ids(read(w)) == ["b"]


def test_a_broadcast_is_in_the_inbox_as_long_as_in_the_log() -> None:
    w = world()
    w.attach(1)
    pos = w.broadcast("news")
    w.settle()
    w.ack(1, 1)
    w.persist()
    assert ids(read(w)) == ["news"]
    w.drop(pos)
    assert ids(read(w)) == []
    assert read(w).unread == 0


class InboxesOfAShard(RuleBasedStateMachine):
    """A user with several devices, a shard that crashes and evicts, and a list of what was accepted and what was done with it."""

    def __init__(self) -> None:
        super().__init__()
        self.world = world(recent_ids=8)
        self.conns: list[int] = []
        self.conn = 0
        self.head = 0
        self.marks: dict[int, int] = {}
        self.revisions: list[int] = []
        self.told: tuple[int, int, int] | None = None

    def note(self, said: list[Any]) -> None:
        for record in said_of(said, wire.Counts):
            self.revisions.append(record.revision)
            self.told = (record.unread, record.unseen, record.revision)

    def counts(self) -> tuple[int, int]:
        listed = [flags for flags in self.marks.values() if not flags & ARCHIVED]
        return sum(not flags & READ for flags in listed), sum(not flags & SEEN for flags in listed)

    @rule(kept=st.sampled_from((True, True, True, False)))
    def a_message_is_published(self, kept: bool) -> None:
        self.head += 1
        self.note(self.world.publish(id=f"m{self.head}", ttl_ms=10_000_000, policy_terms=None if kept else NOT_KEPT))
        if kept:
            self.marks[self.head] = 0
            unpinned = sorted(seq for seq, flags in self.marks.items() if not flags & PINNED)
            for seq in unpinned[: -LIMITS.messages_max]:
                del self.marks[seq]

    @rule()
    def a_device_connects(self) -> None:
        self.conn += 1
        self.conns = [*self.conns, self.conn][-3:]
        self.note(self.world.connect(self.conn, counts=True))

    @rule()
    def all_devices_go(self) -> None:
        for conn in self.conns:
            self.world.detach(conn)
        self.conns.clear()
        self.note(self.world.settle())

    @rule(back=st.integers(0, 5), by=st.integers(0, 2))
    def something_is_acknowledged(self, back: int, by: int) -> None:
        if self.conns and self.head > back:
            self.note(self.world.acknowledge(self.conns[by % len(self.conns)], self.head - back))

    @rule(back=st.lists(st.integers(0, 9), max_size=3))
    def some_are_acknowledged(self, back: list[int]) -> None:
        if self.conns:
            self.world.ack_ids(self.conns[0], *(f"m{self.head - one}" for one in back))
            self.note(self.world.settle())

    @rule(back=st.lists(st.integers(0, 9), max_size=3, unique=True), mark=st.sampled_from((READ, SEEN, ARCHIVED, PINNED)), on=st.booleans())
    def some_are_marked(self, back: list[int], mark: int, on: bool) -> None:
        seqs = [seq for one in back if (seq := self.head - one) in self.marks]
        self.note(self.world.ask(wire.MarkInbox(1, KEY, mark, on, seqs, [])))
        for seq in sorted(seqs):
            if mark != PINNED:
                flags = READ | SEEN if mark == READ and on else mark
                self.marks[seq] = self.marks[seq] | flags if on else self.marks[seq] & ~flags
            elif on and sum(bool(flags & PINNED) for flags in self.marks.values()) < LIMITS.pinned_max:
                self.marks[seq] |= PINNED
            elif not on and self.marks.get(seq, 0) & PINNED:
                self.marks[seq] &= ~PINNED
                unpinned = sorted(one for one, flags in self.marks.items() if not flags & PINNED)
                if len(unpinned) > LIMITS.messages_max:
                    del self.marks[unpinned[0]]

    @rule(back=st.integers(0, 9), mark=st.sampled_from((READ, SEEN, ARCHIVED)))
    def all_up_to_one_are_marked(self, back: int, mark: int) -> None:
        self.note(self.world.ask(wire.MarkInbox(1, KEY, mark, True, [], [], max(self.head - back, 0))))
        for seq in self.marks:
            if seq <= self.head - back:
                self.marks[seq] |= READ | SEEN if mark == READ else mark

    @rule(full=st.booleans())
    def a_checkpoint_is_written(self, full: bool) -> None:
        self.world.checkpoint(full=full)
        self.note(self.world.settle())

    @rule(ms=st.sampled_from((10, 1000)))
    def time_passes(self, ms: int) -> None:
        self.note(self.world.wait(ms))
        self.world.core.tick(self.world.now_ms)
        self.note(self.world.settle())
        if self.conns:
            assert self.told is not None
            assert self.told[:2] == self.counts()

    @rule()
    def the_shard_dies(self) -> None:
        self.world.crash()
        self.conns.clear()

    @rule()
    def the_mailbox_is_evicted(self) -> None:
        if not self.conns:
            evict(self.world)

    @invariant()
    def the_inbox_is_what_was_accepted_and_done_with_it(self) -> None:
        answer = read(self.world)
        assert {row.seq: row.flags for row in answer.rows} == {seq: flags for seq, flags in self.marks.items() if not flags & ARCHIVED}
        assert ids(answer) == [f"m{row.seq}" for row in answer.rows]
        assert [row.seq for row in answer.rows] == sorted((row.seq for row in answer.rows), reverse=True)
        assert {row.seq for row in read(self.world, IN_ARCHIVE).rows} == {seq for seq, flags in self.marks.items() if flags & ARCHIVED}
        assert all(not row.flags & READ for row in read(self.world, UNREAD).rows)
        assert (answer.unread, answer.unseen) == self.counts()
        self.revisions.append(answer.revision)

    @invariant()
    def the_revision_only_grows(self) -> None:
        assert self.revisions == sorted(self.revisions)

    @invariant()
    def storage_has_no_more_than_the_inbox_and_what_is_pending(self) -> None:
        mailbox = self.world.core.mailboxes.get(KEY)
        if mailbox is not None and mailbox.inbox is not None and KEY not in self.world.core.mailbox_store._dirty:
            extra = [seq for seq in self.world.streams.get(KEY, ()) if seq not in self.marks and not mailbox.is_pending(seq)]
            assert not extra


TestInboxesOfAShard = InboxesOfAShard.TestCase
TestInboxesOfAShard.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("view", [ALL, UNREAD, IN_ARCHIVE])
def test_the_inbox_of_somebody_unknown_is_empty(view: int) -> None:
    assert read(world(), view).rows == []
