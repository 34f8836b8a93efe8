"""Nacks that wait for a read of the offline stream, and what waits behind them."""

from __future__ import annotations

import pytest

from engine.core.journal.journal_records import recalled
from engine.core.journal.stored_formats import decode_stored
from engine.core.mailbox.broadcast_log import BroadcastMirror
from engine.core.mailbox.mailbox import Mailbox
from engine.core.shard import nack_queue
from engine.core.shard.mailbox_store import MailboxStore, StreamRead
from engine.core.shard.nack_queue import NackQueue
from engine.core.wire.records import Ack, AckIds, Nack
from tests.support.shard_world import EDGE, World

KEY = "t:u"


class Successor:
    """A shard that has read the user's page: messages 1, 2, 3, ... with the ids "m1", "m2", ... are cold, and only the last id is known."""

    def __init__(self, *, messages: int = 3, window: int = 8) -> None:
        world = World(recent_ids=1)
        for _ in range(messages):
            world.post()
        world.persist()
        self.stream = world.streams[KEY]
        self.store = MailboxStore(world.config, BroadcastMirror())
        self.store.restore(KEY, world.page(KEY), world.now_ms)
        self.queue = NackQueue(self.store, window)

    @property
    def mailbox(self) -> Mailbox:
        return self.store.mailboxes[KEY]

    def nack(self, *ids: str, conn: int = 1, read: int = 0) -> list[str]:
        return self.queue.nack(self.mailbox, EDGE, Nack(conn, list(ids), "cannot"), read=read)

    def dead(self) -> list[int]:
        return [letter.message.seq for letter in self.store.take_dead_letters()]

    def read(self) -> StreamRead:
        (read,) = self.store.take_reads_wanted(1000)
        numbers = range(read.first, read.last + 1)
        self.mailbox.loading = False
        messages = (recalled(decode_stored(self.stream[seq]), self.store.log) for seq in numbers)
        self.mailbox.loaded(read.first, read.last, [message for message in messages if message is not None])
        return read


def test_a_nack_of_a_hot_message_or_of_an_unknown_id_does_not_wait() -> None:
    shard = Successor()
    shard.store.want_read(shard.mailbox, 1, 3)
    shard.read()
    assert shard.nack("m2", "never sent") == ["never sent"]
    assert shard.dead() == [2]
    assert shard.queue.waiting == {}


def test_a_nack_of_a_cold_message_waits_for_the_read_and_takes_effect_then() -> None:
    shard = Successor()
    assert shard.nack("m2") == []
    assert shard.dead() == []
    read = shard.read()
    (queued,) = shard.queue.take(shard.mailbox, read.first, read.last)
    assert (queued.session, queued.record, queued.read) == (EDGE, Nack(1, ["m2"], "cannot"), 3)
    assert shard.nack("m2", read=queued.read) == []
    assert shard.dead() == [2]
    assert shard.queue.waiting == {}


def test_an_older_message_of_unknown_id_is_read_though_a_newer_one_is_nacked_with_it() -> None:
    shard = Successor(messages=5, window=2)
    assert shard.nack("m5", "m1") == []
    read = shard.read()
    assert read.first == 1, "the number of m5 is known, and m1 may have any"
    (queued,) = shard.queue.take(shard.mailbox, read.first, read.last)
    assert shard.nack("m5", "m1", read=queued.read) == []
    assert shard.dead() == [1]
    assert shard.read().first == 5, "m5 waits for a read of its own"
    assert shard.nack("m5") == []
    assert shard.dead() == [5]


def test_an_unknown_id_is_looked_for_in_the_whole_stream() -> None:
    shard = Successor(messages=6, window=2)
    assert shard.nack("m4", "never sent") == []
    assert shard.nack("m6", conn=2) == []
    dead = []
    while shard.queue.waiting:
        read = shard.read()
        records = [(queued.record, queued.read) for queued in shard.queue.take(shard.mailbox, read.first, read.last)]
        over = [shard.nack(*record.ids, conn=record.conn, read=upto) for record, upto in records if isinstance(record, Nack)]
        dead += shard.dead()
    assert (dead, over) == ([4, 6], [["never sent"], []])


def test_a_read_that_was_under_way_before_ends_no_wait() -> None:
    shard = Successor(messages=5, window=2)
    shard.store.want_read(shard.mailbox, 1, 2)
    assert shard.nack("m5") == []
    read = shard.read()
    assert (read.first, read.last) == (1, 2)
    (queued,) = shard.queue.take(shard.mailbox, read.first, read.last)
    assert queued.read == 0
    assert shard.nack("m5") == []
    assert shard.read().first == 5


def test_later_records_of_the_same_connection_wait_in_order_and_those_of_others_do_not() -> None:
    shard = Successor()
    shard.nack("m2")
    behind = [AckIds(1, ["m1"]), Nack(1, ["m3"], "cannot"), Ack(1, 3)]
    assert all(shard.queue.holds_back(shard.mailbox, EDGE, record) for record in behind)
    assert not shard.queue.holds_back(shard.mailbox, EDGE, Ack(2, 3))
    assert not shard.queue.holds_back(shard.mailbox, "edge-1/1", Ack(1, 3)), "numbers of connections are their edge's"
    assert [queued.record for queued in shard.queue.take(shard.mailbox, 1, 3)] == [Nack(1, ["m2"], "cannot"), *behind]


def test_beyond_the_limit_records_are_dropped_and_not_applied_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nack_queue, "BEHIND_MAX", 2)
    shard = Successor()
    shard.nack("m2")
    assert [shard.queue.holds_back(shard.mailbox, EDGE, Ack(1, seq)) for seq in (1, 2, 3)] == [True, True, True]
    assert [queued.record for queued in shard.queue.take(shard.mailbox, 1, 3)] == [Nack(1, ["m2"], "cannot"), Ack(1, 1)]


def test_without_connections_nothing_waits() -> None:
    shard = Successor()
    shard.nack("m2")
    shard.queue.connections_ended(shard.mailbox)
    assert shard.queue.take(shard.mailbox, 1, 3) == []
    assert not shard.queue.holds_back(shard.mailbox, EDGE, Ack(1, 3))
