"""Connections that want the counts of their inbox are sent them, with revisions that only grow."""

from __future__ import annotations

from engine.core.inbox.inbox import SEEN, InboxLimits
from engine.core.wire.records import Counts, MarkInbox
from tests.support.shard_world import World, of

LIMITS = InboxLimits(messages_max=6, keep_ms=600_000, pinned_max=2, numbers_max=100)


def test_counts_go_to_the_connections_that_want_them_when_they_change() -> None:
    w = World(inbox=LIMITS)
    w.attach(1, counts=True)
    (first,) = of(w.connect(2), Counts)
    assert (first.conn, first.unread, first.unseen) == (1, 0, 0)
    for id in "abc":
        w.post(id=id)
    w.settle()
    w.core.tick(w.now_ms)
    (second,) = of(w.settle(), Counts)
    assert (second.conn, second.unread) == (1, 3)
    assert second.revision > first.revision
    w.acknowledge(1, 3)
    w.core.tick(w.now_ms)
    assert not of(w.settle(), Counts), "an acknowledgement reads nothing"
    w.ask(MarkInbox(9, "t:u", SEEN, True, [], [], -1))
    w.core.tick(w.now_ms)
    (third,) = of(w.settle(), Counts)
    assert (third.unread, third.unseen) == (3, 0)
    assert third.revision > second.revision


def test_an_acknowledged_refusal_changes_the_counts() -> None:
    w = World(inbox=LIMITS)
    w.attach(1, counts=True)
    w.attach(2)
    w.publish(id="a")
    w.core.tick(w.now_ms)
    w.settle()
    w.nack(1, "a")
    w.ack_ids(2, "a")
    w.core.tick(w.now_ms)
    (counts,) = of(w.said(), Counts)
    assert (counts.unread, counts.unseen) == (0, 0)
